"""What each vLLM release does with a KV cache: differences between versions are data, not branches."""

import re
from bisect import bisect_right
from dataclasses import dataclass, replace
from typing import Literal

from hybrid_serve.facts.layers import MambaKind

DEFAULT_VLLM = "0.29.0"

SlidingStart = Literal["target block", "kernel block"]
V1Targets = Literal["all", "hybrid", "none"]

TWO_LAYOUTS = frozenset({"NHD", "HND"})
BLOCK_COMPACT_LAYOUTS = frozenset({"LBNHC", "LBHNC", "BLNHC", "BLHNC"}) | TWO_LAYOUTS


@dataclass(frozen=True, kw_only=True)
class EngineCapabilities:
    """One vLLM release. Each field's source is a file of that release; the defaults are 0.29.0's.

    Attributes:
        version: the release.
        checked_as: the release whose source was read, where it is not `version` itself; empty where it is.

        cuda_kernel_block: FlashAttention's smallest kernel block in tokens (v1/attention/backends/flash_attn.py);
            the Triton backend's, which serves per-token-head dtypes, is the same.
        cuda_default_block: block size where the user sets none (config/cache.py).
        fa4_kernel_block, fa4_head_dim, fa4_sms: FlashAttention 4's larger block and where it is used
            (v1/attention/backends/flash_attn.py, _get_fa4_hd256_block_size). No SM: not in this release.
        every_backend_aligns: the drafter's backend takes part in aligning the target's block, and a sliding layer's
            own head_dim decides its kernel block (platforms/interface.py, _align_hybrid_block_size).
        cpu_kernel_block: the CPU backend's (v1/attention/backends/cpu_attn.py).
        cpu_default_block: platforms/cpu.py.
        cpu_aligns: the CPU aligns the target's block with the mamba state too
            (platforms/cpu.py, update_block_size_for_backend).

        sliding_starts_at: block of a sliding layer before pages are unified
            (model_executor/layers/attention/attention.py, get_kv_cache_spec).
        pads_mamba_pages: states are padded to a larger page; without it grouping asserts
            (v1/core/kv_cache_utils.py, unify_kv_cache_spec_page_size).
        pads_attention_pages, cpu_pads_attention_pages: attention pages that do not divide the largest page are
            padded; without it grouping gives up (the same function; 0.26: indexes_kv_by_block_stride of
            v1/attention/backend.py).
        reserves_null_block: the admission check leaves out the block that the pool holds back
            (v1/core/kv_cache_utils.py, get_kv_cache_configs).
        counts_batches_in_flight: a sliding layer keeps the tokens of every batch in flight, not of one
            (v1/kv_cache_interface.py, SlidingWindowSpec).
        block_within_batch: in mamba cache mode `align` the smallest block must not exceed max_num_batched_tokens
            (config/vllm.py, validate_block_size, called from v1/engine/core.py once the groups are known).
        checkpointing_kinds: mamba layers that hold one state more in mode `align`, exported from inside a prefill
            (model_executor/layers/mamba/mamba_mixer2.py, get_kv_cache_spec).
        flashinfer_gdn_block: the same for GDN layers whose prefill FlashInfer does; then blocks are multiples of this
            many tokens (model_executor/layers/mamba/gdn/qwen_gdn_linear_attn.py). 0: not in this release.
        replayssm_kinds: mamba layers that, with `use_replayssm`, hold one state and a ring of inputs instead of 1 + K
            states (model_executor/layers/mamba/abstract.py, get_kv_cache_spec; config/vllm.py,
            validate_mamba_cached_kernel). 0.29 has the option for mamba2 without a drafter, where there is one state
            anyway; GDN layers have it in no release up to 0.33.

        layouts, cpu_layouts: values of VLLM_KV_CACHE_LAYOUT that a hybrid model can have (envs.py;
            v1/attention/backends/utils.py, resolve_kv_cache_layout; cpu_attn.py).
        alike_layouts: more of them, for a model whose layers all have the same heads and pages.
        packs_sliding_as_states: packed grouping splits sliding layers like mamba states
            (v1/core/kv_cache_utils.py, _get_packed_kv_cache_groups).
        packs_whole_kernel_pages: a packed block is a multiple of FlashAttention 4's pages
            (v1/worker/utils.py, customize_attention_spec).

        missing_methods: speculative methods that the command line rejects (config/speculative.py).
        draft_kv_dtype: the drafter's KV dtype can be given (config/speculative.py, kv_cache_dtype).
        dflash_keeps_model_dtype: a DFlash drafter's KV stays in the model's dtype, since its layers are built without
            the cache config (model_executor/models/qwen3_dflash.py).
        dflash_sliding_as_full: a DFlash drafter's sliding layers run, and are allocated, as full ones (the same file).
        dflash_reads_one_layer_early: a DFlash drafter is fed the hidden states before its `target_layer_ids` instead of
            those after them (v1/worker/gpu_model_runner.py, _get_eagle3_aux_layers_from_config, which takes the ids as
            they are); see hybrid_serve.engine.patches.dflash_hidden_states.

        cpu_drafter_in_one_group: the CPU's V1 model runner wants all of a drafter's layers in one group
            (v1/spec_decode/llm_base_proposer.py, validate_same_kv_cache_group).
        reconciles_attention_layouts: a V1 runner gives attention backends that disagree on where the block comes in
            their tensors one order, in a model without mamba layers too (v1/worker/gpu_model_runner.py,
            _has_mixed_attention_kv_layout). Without it such layers overwrite each other: FlashAttention's and, with a
            per-token-head dtype, Triton's.
        v1_targets: targets that run on the V1 model runner on CUDA too, with the same want
            (config/vllm.py, use_v2_model_runner).
        v1_methods: speculative methods that do (the same file, _get_v2_model_runner_unsupported_features).
        v2_methods, v2_for_mixed_dflash: what runs on the V2 runner whatever the target (use_v2_model_runner).
        cpu_mamba_align: mamba cache mode `align` (prefix caching) with a drafter runs on a CPU. It starts and dies on
            the first request where its state copy is a Triton kernel (v1/worker/mamba_utils.py, run_fused_precopy).
        cpu_expands_only_integers: the CPU's rejection sampler gets uninitialised temperatures
            (utils/cpu_triton_utils.py, _expand_kernel_impl); see hybrid_serve.engine.patches.cpu_sampling.

        sets_prefix_match_unit: the tokens between two prefix hashes can be given (engine/arg_utils.py,
            --prefix-match-unit).
        publishes_capacity: the engine core reports its KV cache size in tokens and its maximum concurrency
            (v1/engine/core_client.py, kv_cache_size_tokens). Where it does not, a worker works them out.
        patch: module under hybrid_serve.engine.patches that applies a plan; None if none does.
    """

    version: str
    checked_as: str = ""
    cuda_kernel_block: int = 16
    cuda_default_block: int = 16
    fa4_kernel_block: int = 128
    fa4_head_dim: int = 256
    fa4_sms: frozenset[int] = frozenset({100, 103})
    every_backend_aligns: bool = False
    cpu_kernel_block: int = 32
    cpu_default_block: int = 128
    cpu_aligns: bool = True
    sliding_starts_at: SlidingStart = "kernel block"
    pads_mamba_pages: bool = True
    pads_attention_pages: bool = True
    cpu_pads_attention_pages: bool = True
    reserves_null_block: bool = True
    counts_batches_in_flight: bool = True
    block_within_batch: bool = False
    checkpointing_kinds: frozenset[MambaKind] = frozenset()
    flashinfer_gdn_block: int = 0
    replayssm_kinds: frozenset[str] = frozenset()
    layouts: frozenset[str] = BLOCK_COMPACT_LAYOUTS
    cpu_layouts: frozenset[str] = frozenset({"LBHNC", "HND"})
    alike_layouts: frozenset[str] = frozenset({"LHBNC", "BHLNC"})
    packs_sliding_as_states: bool = False
    packs_whole_kernel_pages: bool = False
    missing_methods: frozenset[str] = frozenset()
    draft_kv_dtype: bool = True
    dflash_keeps_model_dtype: bool = False
    dflash_sliding_as_full: bool = False
    dflash_reads_one_layer_early: bool = False
    reconciles_attention_layouts: bool = True
    cpu_drafter_in_one_group: bool = True
    v1_targets: V1Targets = "none"
    v1_methods: frozenset[str] = frozenset({"draft_model"})
    v2_methods: frozenset[str] = frozenset()
    v2_for_mixed_dflash: bool = False
    cpu_mamba_align: bool = False
    cpu_expands_only_integers: bool = True
    sets_prefix_match_unit: bool = True
    publishes_capacity: bool = True
    patch: str | None = "kv_cache_utils"

    @property
    def block_outermost(self) -> bool:
        """Layouts with blocks outermost exist, so groups may fill a block each in its own way."""
        return any(layout.startswith("B") for layout in self.layouts)

    @property
    def note(self) -> str | None:
        """What to tell the user of a release that was not itself checked; None where it was."""
        if not self.checked_as:
            return None
        return (
            f"vLLM {self.version} was not checked itself: it is planned as {self.checked_as}, the nearest checked "
            "release below it. Compare the plan with what the engine reports"
        )


_V0_29 = EngineCapabilities(version="0.29.0")
_V0_26 = replace(
    _V0_29,
    version="0.26.0",
    fa4_sms=frozenset(),
    cpu_kernel_block=16,
    cpu_pads_attention_pages=False,
    reserves_null_block=False,
    block_within_batch=True,
    layouts=TWO_LAYOUTS,
    cpu_layouts=TWO_LAYOUTS,
    alike_layouts=frozenset(),
    v1_targets="hybrid",
    v2_methods=frozenset({"dspark"}),
    v2_for_mixed_dflash=True,
)
_V0_20 = replace(
    _V0_26,
    version="0.20.1",
    cpu_aligns=False,
    sliding_starts_at="target block",
    pads_mamba_pages=False,
    pads_attention_pages=False,
    counts_batches_in_flight=False,
    missing_methods=frozenset({"dspark", "custom_class"}),
    draft_kv_dtype=False,
    dflash_keeps_model_dtype=True,
    dflash_sliding_as_full=True,
    dflash_reads_one_layer_early=True,
    reconciles_attention_layouts=False,
    v1_targets="all",
    v2_methods=frozenset(),
    v2_for_mixed_dflash=False,
    sets_prefix_match_unit=False,
    publishes_capacity=False,
    patch="uniform_pages",
)
_V0_32 = replace(
    _V0_29,
    version="0.32.0",
    every_backend_aligns=True,
    sliding_starts_at="target block",
    checkpointing_kinds=frozenset({"mamba2"}),
    replayssm_kinds=frozenset({"mamba2"}),
    packs_sliding_as_states=True,
    packs_whole_kernel_pages=True,
    v1_methods=frozenset(),
)
_V0_33 = replace(
    _V0_32,
    version="0.33.0",
    flashinfer_gdn_block=64,
    missing_methods=frozenset({"medusa", "mlp_speculator"}),
    patch="kv_cache_config_builder",
)

CAPABILITIES: dict[str, EngineCapabilities] = {
    release.version: release for release in (_V0_20, _V0_26, _V0_29, _V0_32, _V0_33)
}


def capabilities(version: str) -> EngineCapabilities:
    """The capabilities of a vLLM release (`0.29.0`, or with a local part as in `0.29.0+cpu`).

    A release between two checked ones gets those of the nearest checked one below it, and says so in `note`.

    Raises:
        ValueError: the release lies outside the supported range; the message gives it.
    """
    release = version.split("+")[0]
    if release in CAPABILITIES:
        return CAPABILITIES[release]
    checked = sorted(CAPABILITIES, key=_numbers)
    first, last = _numbers(checked[0]), _numbers(checked[-1])
    asked = _numbers(release)
    below = bisect_right([_numbers(known) for known in checked], asked)
    if asked < first or asked[:2] > last[:2]:
        raise ValueError(
            f"vLLM {version} is not supported: supported are {checked[0]} to {last[0]}.{last[1]}.x "
            f"(checked: {', '.join(checked)})"
        )
    nearest = checked[below - 1]
    return replace(CAPABILITIES[nearest], version=release, checked_as=nearest)


def _numbers(version: str) -> tuple[int, int, int, int]:
    """(0, 29, 0, 0) for `0.29.0`; a pre-release sorts below its release, anything unreadable below all."""
    found = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?(?P<pre>\.?(?:rc|a|b|dev)\d*)?", version)
    if found is None:
        return (-1, 0, 0, 0)
    return (int(found[1]), int(found[2]), int(found[3] or 0), -1 if found["pre"] else 0)
