"""How many blocks, and bytes, a request holds. Formulas: vLLM 0.29.0, `max_memory_usage_bytes` of each spec."""

from hybrid_serve.plan.buckets import MambaBucket, buckets_of
from hybrid_serve.plan.inputs import PlanInputs
from hybrid_serve.plan.kv_plan import GroupKind, KVPlan


def ceil_div(value: int, by: int) -> int:
    return -(-value // by)


def in_flight_tokens(inputs: PlanInputs) -> int:
    """Tokens scheduled but not settled: one batch of max_num_batched_tokens, two with async scheduling."""
    asynchronous = inputs.settings.async_scheduling
    if asynchronous is None:
        asynchronous = inputs.device == "cuda"
    return (2 if asynchronous else 1) * inputs.settings.max_num_batched_tokens


def states_per_request(inputs: PlanInputs) -> int:
    """Mamba states one request holds in each layer: 1 + K, and one more in cache mode `align`."""
    return 1 + inputs.settings.num_speculative_tokens + (1 if inputs.settings.prefix_caching else 0)


def kept_tokens(context: int, window: int | None, inputs: PlanInputs) -> int:
    """Tokens of a request that an attention layer keeps: all, or window - 1 + those in flight."""
    return context if window is None else min(context, window - 1 + in_flight_tokens(inputs))


def group_blocks(kind: GroupKind, *, block_size: int, window: int | None, context: int, inputs: PlanInputs) -> int:
    """Blocks that one request of `context` tokens holds in one group.

    A sliding group needs one block more, since a window need not start at a block's edge.
    """
    if kind == "mamba":
        return states_per_request(inputs)
    if kind == "sliding":
        return ceil_div(kept_tokens(context, window, inputs), block_size) + 1
    return ceil_div(context, block_size)


def request_blocks(plan: KVPlan, inputs: PlanInputs, context: int) -> int:
    """Blocks that one request of `context` tokens holds under a plan."""
    return sum(
        group_blocks(group.kind, block_size=group.block_size, window=group.window, context=context, inputs=inputs)
        for group in plan.groups
    )


def request_bytes(plan: KVPlan, inputs: PlanInputs, context: int) -> int:
    """Bytes that one request of `context` tokens holds under a plan."""
    return request_blocks(plan, inputs, context) * plan.block_bytes


def floor_bytes(inputs: PlanInputs, context: int) -> int:
    """Bytes that one request of `context` tokens needs with no padding and no rounding to blocks."""
    total = 0
    for bucket in buckets_of(inputs):
        if isinstance(bucket, MambaBucket):
            total += bucket.layers * bucket.state_bytes * states_per_request(inputs)
        else:
            window = bucket.window if bucket.kind == "sliding" else None
            total += bucket.layers * bucket.bytes_per_token * kept_tokens(context, window, inputs)
    return total


def kernel_block(inputs: PlanInputs) -> int:
    """The attention kernel's block granularity in tokens.

    FlashAttention 4 (a target with head_dim 256 on SM100) takes multiples of 128; the CPU backend has its own.
    """
    capabilities = inputs.capabilities
    if inputs.device == "cpu":
        return capabilities.cpu_kernel_block
    head_dims = {layers.head_dim for layers in inputs.target.attention}
    if inputs.sm in capabilities.fa4_sms and capabilities.fa4_head_dim in head_dims:
        return capabilities.fa4_kernel_block
    return capabilities.cuda_kernel_block
