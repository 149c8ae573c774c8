"""How many blocks, and bytes, a request holds. Formulas: vLLM's `max_memory_usage_bytes` of each spec."""

from dataclasses import replace

from hybrid_serve.facts.layers import DTYPE_BYTES, PER_TOKEN_HEAD
from hybrid_serve.plan.buckets import (
    AttentionBucket,
    MambaBucket,
    asked_buckets_of,
    drafter_kv_dtype,
    resolve_dtype,
)
from hybrid_serve.plan.inputs import PlanInputs
from hybrid_serve.plan.kv_plan import GroupKind, KVPlan
from hybrid_serve.plan.replay import replays

FA3_TILES: dict[int, tuple[tuple[int, int], ...]] = {
    2: ((64, 128), (96, 144), (128, 128), (192, 112), (256, 80)),
    1: ((64, 160), (96, 128), (128, 224), (192, 160), (256, 128)),
}
"""Bytes of a value: (head_dim at most, tokens of a tile of K and V in a causal prefill)."""


def ceil_div(value: int, by: int) -> int:
    return -(-value // by)


def in_flight_tokens(inputs: PlanInputs) -> int:
    """Tokens scheduled but not settled: one batch of max_num_batched_tokens, two with async scheduling.

    Where vLLM does not count batches in flight (before 0.26), one.
    """
    asynchronous = inputs.settings.async_scheduling
    if asynchronous is None:
        asynchronous = inputs.device == "cuda"
    batches = 2 if asynchronous and inputs.capabilities.counts_batches_in_flight else 1
    return batches * inputs.settings.max_num_batched_tokens


def states_of_a_draft(inputs: PlanInputs) -> int:
    """Mamba states that a step writes in each layer: one for every token it verifies, or one with ReplaySSM."""
    return 1 if replays(inputs) else 1 + inputs.settings.num_speculative_tokens


def states_per_request(inputs: PlanInputs) -> int:
    """Mamba states one request holds in each layer: 1 + K; one more in cache mode `align`, two where layers checkpoint.

    A layer that exports a state from inside a prefill keeps one for it (`num_prefill_checkpoint_blocks`).
    """
    states = states_of_a_draft(inputs)
    if not inputs.settings.prefix_caching:
        return states
    kinds = {layers.kind for layers in inputs.target.mamba}
    checkpoints = bool(kinds & inputs.capabilities.checkpointing_kinds) or checkpoint_block(inputs) > 1
    return states + (2 if checkpoints else 1)


def checkpoint_block(inputs: PlanInputs) -> int:
    """Tokens that every block is a multiple of because GDN prefill checkpoints land on block boundaries; 1 if none do.

    With prefix caching, FlashInfer does GDN prefill on SM90 for any head, on SM10x and SM12x for keys of 128
    (vLLM 0.33.0, `_resolve_gdn_prefill_backend`; its wheels are built for CUDA 13, which the latter needs).
    """
    alignment = inputs.capabilities.flashinfer_gdn_block
    settings = inputs.settings
    asked = settings.prefix_caching and settings.gdn_prefill_backend != "triton"
    if not alignment or not asked or inputs.device != "cuda" or inputs.sm is None:
        return 1
    kinds = {layers.kind for layers in inputs.target.mamba}
    key_dims = {layers.head_k_dim for layers in inputs.target.mamba}
    runs = inputs.sm == 90 or (inputs.sm // 10 in (10, 12) and key_dims == {128})
    return alignment if runs and kinds == {"gdn"} else 1


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
    """Bytes that one request of `context` tokens needs with no padding and no rounding to blocks.

    A property of the model, the settings and the device: it does not depend on what a release makes of them.
    """
    states = states_of_a_draft(inputs) + (1 if inputs.settings.prefix_caching else 0)
    plain = replace(inputs, capabilities=replace(inputs.capabilities, counts_batches_in_flight=True))
    total = 0
    for bucket in asked_buckets_of(inputs):
        if isinstance(bucket, MambaBucket):
            total += bucket.layers * bucket.state_bytes * states
        else:
            window = bucket.window if bucket.kind == "sliding" else None
            total += bucket.layers * bucket.bytes_per_token * kept_tokens(context, window, plain)
    return total


def kernel_block(inputs: PlanInputs) -> int:
    """The attention kernels' block granularity in tokens: what the target's block is aligned to.

    FlashAttention 4 (a target with head_dim 256 on SM100) takes multiples of 128; the CPU backend has its own.
    """
    capabilities = inputs.capabilities
    if inputs.device == "cpu":
        return capabilities.cpu_kernel_block
    dtypes = {resolve_dtype(inputs.settings.kv_dtype, inputs.target_dtype)}
    if capabilities.every_backend_aligns and inputs.drafter is not None:
        dtypes.add(drafter_kv_dtype(inputs))
    head_dims = {layers.head_dim for layers in inputs.target.attention}
    flash = not dtypes <= PER_TOKEN_HEAD
    if flash and inputs.sm in capabilities.fa4_sms and capabilities.fa4_head_dim in head_dims:
        return capabilities.fa4_kernel_block
    return capabilities.cuda_kernel_block


def layer_kernel_block(bucket: AttentionBucket, inputs: PlanInputs) -> int:
    """The kernel block of one bucket's layers by their own head_dim and dtype."""
    capabilities = inputs.capabilities
    if inputs.device == "cpu":
        return capabilities.cpu_kernel_block
    _, head_dim, dtype = bucket.shape
    flash = dtype not in PER_TOKEN_HEAD
    if flash and inputs.sm in capabilities.fa4_sms and head_dim == capabilities.fa4_head_dim:
        return capabilities.fa4_kernel_block
    return capabilities.cuda_kernel_block


def paged_tile(bucket: AttentionBucket, inputs: PlanInputs) -> int:
    """Tokens that a block should be a multiple of, so that FlashAttention 3 loads a prompt's K and V tile by tile; 1
    where nothing depends on it.

    On SM90 its prefill loads a tile of K with one bulk copy if blocks hold whole tiles, and gathers token by token if
    they don't (vllm-project/flash-attention, hopper/flash_api.cpp get_pagedkv_tma; the tiles: hopper/tile_size.h,
    tile_size_fwd_sm90, causal). Decoding gathers anyway, and a DFlash drafter has no prefill. Per-token-head dtypes are
    Triton's.
    """
    _, head_dim, dtype = bucket.shape
    flash = inputs.device == "cuda" and inputs.sm == 90 and dtype not in PER_TOKEN_HEAD
    if not flash or bucket.owner != "target" or bucket.kind != "full":
        return 1
    tiles = FA3_TILES.get(DTYPE_BYTES[dtype], ())
    return next((tile for most, tile in tiles if head_dim <= most), 1)
