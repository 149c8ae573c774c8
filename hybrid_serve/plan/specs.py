"""The KV cache specs that vLLM's layers register, before any grouping.

1. align: the target's block grows until its page covers the mamba state, and the state is padded to that page
   (platforms/interface.py, `_align_hybrid_block_size`);
2. specs: one per layer; full attention takes the aligned block, sliding layers start at it or at the smallest kernel
   block (model_executor/layers/attention/attention.py, `get_kv_cache_spec`).
"""

from dataclasses import dataclass
from math import lcm
from typing import NamedTuple

from hybrid_serve.plan.buckets import AttentionBucket, Bucket, MambaBucket, buckets_of
from hybrid_serve.plan.capacity import ceil_div, checkpoint_block, kernel_block, layer_kernel_block
from hybrid_serve.plan.inputs import PlanInputs


@dataclass(frozen=True)
class LayerSpec:
    """vLLM's KV cache spec of the layers of one bucket: block in tokens, page in bytes (padding included)."""

    bucket: Bucket
    block_size: int
    page: int

    @property
    def merge_key(self) -> object:
        """Equal for buckets whose layers vLLM puts into one bucket: attention of equal shape, window and page."""
        if isinstance(self.bucket, AttentionBucket):
            return (self.bucket.kind, self.bucket.window, self.bucket.shape, self.block_size, self.page)
        return self.bucket.index

    @property
    def type_key(self) -> object:
        """Equal for specs that vLLM counts as one type, whatever their pages (`UniformTypeKVCacheSpecs`)."""
        if isinstance(self.bucket, AttentionBucket):
            return (self.bucket.kind, self.bucket.window, self.block_size)
        return ("mamba", self.page, self.block_size)


class Aligned(NamedTuple):
    """The target's block in tokens, and the page that states are padded to; page 0 if there is nothing to align."""

    block_size: int
    state_page: int


def layer_specs(inputs: PlanInputs) -> tuple[LayerSpec, ...]:
    """Steps 1 and 2, in the order in which the layers register."""
    buckets = buckets_of(inputs)
    block_size, state_page = align(buckets, inputs)
    specs = []
    for bucket in buckets:
        if isinstance(bucket, MambaBucket):
            span = block_size if inputs.settings.prefix_caching else inputs.settings.max_model_len
            specs.append(LayerSpec(bucket, span, max(state_page, bucket.state_bytes)))
        else:
            span = _sliding_block(bucket, block_size, inputs) if bucket.kind == "sliding" else block_size
            specs.append(LayerSpec(bucket, span, span * bucket.bytes_per_token))
    return tuple(specs)


def align(buckets: tuple[Bucket, ...], inputs: PlanInputs) -> Aligned:
    """Step 1. Qwen3.5-35B-A3B at K = 8: ceil(2,277,376 / (16 * 2048)) * 16 = 1120 tokens, page 2,293,760 (+0.72 %)."""
    capabilities = inputs.capabilities
    smallest = kernel_block(inputs)
    default = capabilities.cpu_default_block if inputs.device == "cpu" else capabilities.cuda_default_block
    block_size = inputs.settings.block_size or max(default, smallest)
    states = [bucket.state_bytes for bucket in buckets if isinstance(bucket, MambaBucket)]
    full = [b for b in buckets if isinstance(b, AttentionBucket) and b.owner == "target" and b.kind == "full"]
    if not states or not full or (inputs.device == "cpu" and not capabilities.cpu_aligns):
        return Aligned(block_size, 0)
    unit = lcm(max(smallest, block_size), checkpoint_block(inputs))
    per_token = full[0].bytes_per_token
    block_size = max(block_size, unit * ceil_div(max(states), unit * per_token))
    return Aligned(block_size, block_size * per_token)


def _sliding_block(bucket: AttentionBucket, block_size: int, inputs: PlanInputs) -> int:
    """Block in tokens at which a sliding layer starts."""
    capabilities = inputs.capabilities
    if capabilities.sliding_starts_at == "kernel block":
        return capabilities.cpu_kernel_block if inputs.device == "cpu" else capabilities.cuda_kernel_block
    if capabilities.every_backend_aligns and layer_kernel_block(bucket, inputs) == capabilities.fa4_kernel_block:
        return capabilities.fa4_kernel_block
    return block_size
