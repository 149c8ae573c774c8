"""The inputs of a plan: everything `stock()` and `best()` look at, and nothing else."""

from dataclasses import dataclass, field
from typing import Literal

from hybrid_serve.facts.capabilities import EngineCapabilities
from hybrid_serve.facts.device import DeviceKind
from hybrid_serve.facts.layers import Dtype, Layers

KVDtype = Literal["auto", "bf16", "fp8", "int8_per_token_head", "fp8_per_token_head"]
GDNPrefill = Literal["auto", "triton", "flashinfer"]
Prefer = Literal["capacity", "speed"]


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    """The engine options that decide the KV cache, in vLLM's words.

    Attributes:
        tensor_parallel_size: GPUs one replica's layers are split over.
        kv_dtype: of the target's KV cache; `auto` is the model's dtype.
        draft_kv_dtype: of the drafter's; `auto` is the drafter's dtype.
        num_speculative_tokens: K; 0 without a drafter.
        max_model_len: longest request in tokens.
        max_num_batched_tokens: tokens of one step; a sliding layer must keep those in flight.
        max_num_seqs: requests of one step.
        prefix_caching: on means mamba cache mode `align`, off means `none`.
        async_scheduling: two batches in flight instead of one; None takes the device's default
            (CUDA on, CPU off).
        kv_cache_layout: `VLLM_KV_CACHE_LAYOUT` as the user set it; None lets vLLM (stock) or the planner choose.
        block_size: vLLM's `--block-size` where the user set it.
        use_replayssm, replayssm_buffer_len: one state and a ring of inputs instead of 1 + K states, where the release
            has that for the target's mamba layers.
        gdn_prefill_backend: `gdn_prefill_backend` of vLLM's `additional_config`; `auto` is vLLM's default.
        prefix_match_unit: tokens between two prefix hashes, which a fleet agrees on; None leaves it to vLLM. It must
            divide the block sizes of the plan, and does not change it.
    """

    tensor_parallel_size: int = 1
    kv_dtype: KVDtype = "auto"
    draft_kv_dtype: KVDtype = "auto"
    num_speculative_tokens: int = 0
    max_model_len: int = 8192
    max_num_batched_tokens: int = 8192
    max_num_seqs: int = 256
    prefix_caching: bool = False
    async_scheduling: bool | None = None
    kv_cache_layout: str | None = None
    block_size: int | None = None
    use_replayssm: bool = False
    replayssm_buffer_len: int = 16
    gdn_prefill_backend: GDNPrefill = "auto"
    prefix_match_unit: int | None = None


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What the replica will be asked: `contexts` in tokens (prompt and output), each with a weight.

    An empty `contexts` stands for one context of max_model_len. `prefer` weighs padding against the number of groups:
    `capacity` gives up next to no memory for fewer groups, `speed` counts what a group costs in every step
    (`hybrid_serve.plan.search.GROUP_COST`).
    """

    contexts: tuple[tuple[int, float], ...] = ()
    prefer: Prefer = "capacity"


@dataclass(frozen=True, kw_only=True)
class PlanInputs:
    """One replica's planning problem.

    Attributes:
        target, drafter: layer buckets before tensor parallelism; `drafter` None without one.
        target_dtype, drafter_dtype: of the models; what `auto` KV dtypes resolve to.
        device: `cuda` or `cpu`.
        sm: compute capability times ten; None on a CPU.
        kv_memory_bytes: for the KV cache, on one device.
        capabilities: of the vLLM version.
        method: vLLM's name of how the drafter drafts (`dflash`, `mtp`, `eagle3`, `draft_model`, ...).
    """

    target: Layers
    drafter: Layers | None
    settings: EngineSettings
    device: DeviceKind
    kv_memory_bytes: int
    capabilities: EngineCapabilities
    sm: int | None = None
    target_dtype: Dtype = "bf16"
    drafter_dtype: Dtype = "bf16"
    method: str = "dflash"
    workload: Workload = field(default_factory=Workload)
