"""What vLLM does unaided. Every step mirrors one of vLLM's, in its order, and names it.

1. align: the target's block grows until its page covers the mamba state, and the state is padded to that page
   (platforms/interface.py, `_align_hybrid_block_size`);
2. specs: one per layer; full attention takes the aligned block, sliding layers start at the smallest kernel
   block (model_executor/layers/attention/attention.py, `get_kv_cache_spec`);
3. packed grouping if the layout is block-outermost and pages differ, else unify and group uniform pages
   (v1/core/kv_cache_utils.py).
"""

from dataclasses import dataclass, replace

from hybrid_serve.plan.buckets import AttentionBucket, Bucket, MambaBucket, buckets_of
from hybrid_serve.plan.build import attention_group, finish, fits, largest_context, mamba_group
from hybrid_serve.plan.capacity import ceil_div, kernel_block
from hybrid_serve.plan.inputs import PlanInputs
from hybrid_serve.plan.kv_plan import GroupPlan, KVPlan
from hybrid_serve.plan.refusals import one_group_drafter, refusal, scattered_drafter, too_little_memory
from hybrid_serve.plan.stock_packed import packed_groups
from hybrid_serve.plan.verdict import Fits, Impossible, Verdict


@dataclass(frozen=True)
class LayerSpec:
    """vLLM's KV cache spec of the layers of one bucket: block in tokens, page in bytes (padding included)."""

    bucket: Bucket
    block_size: int
    page: int

    @property
    def merge_key(self) -> object:
        """Equal for buckets whose layers vLLM puts into one bucket: full attention of equal shape and page."""
        if isinstance(self.bucket, AttentionBucket) and self.bucket.kind == "full":
            return (self.bucket.shape, self.block_size, self.page)
        return self.bucket.index


def stock(inputs: PlanInputs) -> Verdict:
    """vLLM's own outcome on these inputs: the plan it runs, or the exception it raises."""
    if (refused := refusal(inputs)) is not None:
        return refused
    specs = layer_specs(inputs)
    block_outermost = (inputs.settings.kv_cache_layout or "").startswith("B")
    if block_outermost and len({spec.page for spec in specs}) > 1:
        groups = packed_groups(specs, inputs)
        plan = finish(groups, policy="stock", pages="packed", layout=inputs.settings.kv_cache_layout, inputs=inputs)
    else:
        groups = uniform_groups(unify(specs), inputs)
        plan = finish(groups, policy="stock", pages="uniform", layout=inputs.settings.kv_cache_layout, inputs=inputs)
    if (scattered := drafter_groups(plan, inputs)) > 1:
        return scattered_drafter(scattered, inputs)
    return check_memory(plan, inputs)


def drafter_groups(plan: KVPlan, inputs: PlanInputs) -> int:
    """Groups that the drafter's layers fall into, where the V1 model runner allows one; 0 where it does not matter."""
    if not one_group_drafter(inputs):
        return 0
    return sum(group.owner == "drafter" for group in plan.groups)


def check_memory(plan: KVPlan, inputs: PlanInputs) -> Fits | Impossible:
    """vLLM's admission check: one request of max_model_len beside the null block."""
    if fits(plan, inputs, inputs.settings.max_model_len):
        return Fits(plan=plan)
    return too_little_memory(plan, inputs, largest_context(plan, inputs))


def layer_specs(inputs: PlanInputs) -> tuple[LayerSpec, ...]:
    """Steps 1 and 2: the specs that vLLM's layers register, before grouping."""
    buckets = buckets_of(inputs)
    smallest = kernel_block(inputs)
    block_size, state_page = _align(buckets, smallest, inputs)
    specs = []
    for bucket in buckets:
        if isinstance(bucket, MambaBucket):
            span = block_size if inputs.settings.prefix_caching else inputs.settings.max_model_len
            specs.append(LayerSpec(bucket, span, max(state_page, bucket.state_bytes)))
        else:
            span = smallest if bucket.kind == "sliding" else block_size
            specs.append(LayerSpec(bucket, span, span * bucket.bytes_per_token))
    return tuple(specs)


def _align(buckets: tuple[Bucket, ...], smallest: int, inputs: PlanInputs) -> tuple[int, int]:
    """Block size of the target's attention in tokens, and the page that its states are padded to.

    Qwen3.5-35B-A3B at K = 8: ceil(2,277,376 / (16 * 2048)) * 16 = 1120 tokens, page 2,293,760 (+0.72 %).
    """
    capabilities = inputs.capabilities
    default = capabilities.cpu_default_block if inputs.device == "cpu" else capabilities.cuda_default_block
    block_size = inputs.settings.block_size or max(default, smallest)
    states = [bucket.state_bytes for bucket in buckets if isinstance(bucket, MambaBucket)]
    full = [b for b in buckets if isinstance(b, AttentionBucket) and b.owner == "target" and b.kind == "full"]
    if not states or not full:
        return block_size, 0
    unit = max(smallest, block_size)
    per_token = full[0].bytes_per_token
    block_size = max(block_size, unit * ceil_div(max(states), unit * per_token))
    return block_size, block_size * per_token


def unify(specs: tuple[LayerSpec, ...]) -> tuple[LayerSpec, ...]:
    """`unify_kv_cache_spec_page_size`: attention blocks scale up to the largest page, or are padded; states padded."""
    largest = max(spec.page for spec in specs)
    unified = []
    for spec in specs:
        divides = isinstance(spec.bucket, AttentionBucket) and largest % spec.page == 0
        scale = largest // spec.page if divides else 1
        unified.append(replace(spec, block_size=spec.block_size * scale, page=largest))
    return tuple(unified)


def uniform_groups(specs: tuple[LayerSpec, ...], inputs: PlanInputs) -> list[GroupPlan]:
    """`_get_kv_cache_groups_uniform_page_size`: equal groups as wide as the smallest bucket.

    If the largest bucket is less than 1.5 times the smallest, groups are as wide as the largest instead.
    """
    merged: dict[object, list[LayerSpec]] = {}
    for spec in specs:
        merged.setdefault(spec.merge_key, []).append(spec)
    counts = [sum(spec.bucket.layers for spec in alike) for alike in merged.values()]
    width = max(counts) if max(counts) < min(counts) * 1.5 else min(counts)
    groups = []
    for alike, count in zip(merged.values(), counts, strict=True):
        number = ceil_div(count, width)
        sizes = [len(range(start, count, number)) for start in range(number)]
        groups += [one_group(alike[0], layers, inputs) for layers in sizes]
    return groups


def one_group(spec: LayerSpec, layers: int, inputs: PlanInputs) -> GroupPlan:
    """A group of `layers` layers that all have the spec."""
    if isinstance(spec.bucket, MambaBucket):
        return mamba_group(
            spec.bucket, layers=layers, block_size=spec.block_size, page_size_bytes=spec.page, inputs=inputs
        )
    return attention_group(
        spec.bucket, layers=layers, block_size=spec.block_size, page_size_bytes=spec.page, inputs=inputs
    )
