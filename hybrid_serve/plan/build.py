"""From groups to a finished KV plan: block bytes, blocks, and the check that one request fits."""

from collections.abc import Iterable, Sequence
from math import gcd, lcm

from hybrid_serve.plan.buckets import AttentionBucket, Bucket, MambaBucket
from hybrid_serve.plan.capacity import (
    ceil_div,
    group_blocks,
    layer_kernel_block,
    request_blocks,
    states_per_request,
)
from hybrid_serve.plan.inputs import PlanInputs
from hybrid_serve.plan.kv_plan import GroupKind, GroupPlan, KVPlan, Pages, Policy


def attention_group(
    bucket: AttentionBucket,
    *,
    layers: int,
    block_size: int,
    page_size_bytes: int,
    inputs: PlanInputs,
    kind: GroupKind | None = None,
    uneven_bytes: int = 0,
) -> GroupPlan:
    """A group of `layers` attention layers; `kind="full"` gives a sliding bucket full allocation."""
    kind = kind or bucket.kind
    context = inputs.settings.max_model_len
    return GroupPlan(
        owner=bucket.owner,
        kind=kind,
        layers=layers,
        bucket=bucket.index,
        block_size=block_size,
        page_size_bytes=page_size_bytes,
        content_bytes=block_size * bucket.bytes_per_token,
        window=bucket.window,
        uneven_bytes=uneven_bytes,
        blocks_per_request=group_blocks(
            kind, block_size=block_size, window=bucket.window, context=context, inputs=inputs
        ),
    )


def mamba_group(
    bucket: MambaBucket, *, layers: int, block_size: int, page_size_bytes: int, inputs: PlanInputs
) -> GroupPlan:
    """A group of `layers` mamba layers, one state a layer in each block."""
    return GroupPlan(
        owner=bucket.owner,
        kind="mamba",
        layers=layers,
        bucket=bucket.index,
        block_size=block_size,
        page_size_bytes=page_size_bytes,
        content_bytes=bucket.state_bytes,
        blocks_per_request=states_per_request(inputs),
    )


def finish(
    groups: Sequence[GroupPlan],
    *,
    policy: Policy,
    pages: Pages,
    layout: str | None,
    inputs: PlanInputs,
    block_unit: int = 1,
) -> KVPlan:
    """The plan over `inputs.kv_memory_bytes`: a block is as large as the widest group, in whole `block_unit` bytes."""
    block_bytes = ceil_div(max(group.bytes_in_block for group in groups), block_unit) * block_unit
    return KVPlan(
        policy=policy,
        vllm=inputs.capabilities.version,
        pages=pages,
        kv_cache_layout=layout,
        block_bytes=block_bytes,
        groups=tuple(groups),
        num_blocks=inputs.kv_memory_bytes // block_bytes,
        kv_memory_bytes=inputs.kv_memory_bytes,
        max_model_len=inputs.settings.max_model_len,
    )


def packed_unit(blocks: Iterable[tuple[Bucket, int]], inputs: PlanInputs) -> int:
    """Bytes that a block-outermost block is a multiple of, over (bucket, block size in tokens); 1 if any size will do.

    FlashAttention 4 splits a layer's block into pages of 128 tokens, and from vLLM 0.32 blocks hold whole ones.
    """
    engine = inputs.capabilities
    pages = [1]
    for bucket, block_size in blocks if engine.packs_whole_kernel_pages else ():
        if isinstance(bucket, AttentionBucket) and layer_kernel_block(bucket, inputs) == engine.fa4_kernel_block:
            kernel = gcd(engine.fa4_kernel_block, block_size)
            pages.append(kernel * bucket.bytes_per_token if kernel < block_size else 1)
    return lcm(*pages)


def fits(plan: KVPlan, inputs: PlanInputs, context: int) -> bool:
    """One request of `context` tokens passes vLLM's admission check.

    From 0.29 beside the null block that vLLM's block pool holds back. Ours never go without it: with no block for the
    pool to hold back, the one request would wait forever.
    """
    reserved = plan.policy == "best" or inputs.capabilities.reserves_null_block
    available = plan.kv_memory_bytes - (plan.block_bytes if reserved else 0)
    return available > 0 and request_blocks(plan, inputs, context) * plan.block_bytes <= available


def largest_context(plan: KVPlan, inputs: PlanInputs) -> int:
    """The largest context, up to max_model_len, of which one request fits; 0 if none does."""
    low, high = 0, inputs.settings.max_model_len
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(plan, inputs, middle) else (low, middle - 1)
    return low
