"""Layer buckets in bytes: one GPU's share of each bucket, after tensor parallelism and dtypes.

All sizes are integers in bytes. Formulas: vLLM 0.29.0, `v1/kv_cache_interface.py` (AttentionSpec, MambaSpec) and
`model_executor/layers/mamba/mamba_utils.py` (state shapes of GDN and mamba2).
"""

from dataclasses import dataclass, replace

from hybrid_serve.facts.layers import (
    DTYPE_BYTES,
    PER_TOKEN_HEAD,
    SCALE_BYTES,
    AttentionKind,
    AttentionLayers,
    Dtype,
    Layers,
    MambaLayers,
)
from hybrid_serve.plan.inputs import KVDtype, PlanInputs
from hybrid_serve.plan.kv_plan import Owner
from hybrid_serve.plan.replay import replays, ring_bytes, ring_tokens


@dataclass(frozen=True, kw_only=True)
class AttentionBucket:
    """Attention layers that share one KV cache spec.

    Attributes:
        index: position among all buckets, the target's first.
        bytes_per_token: K and V of one token in one layer on one GPU.
        shape: (KV heads on one GPU, head_dim, dtype); vLLM merges full-attention layers of equal shape.
    """

    owner: Owner
    index: int
    kind: AttentionKind
    layers: int
    bytes_per_token: int
    shape: tuple[int, int, Dtype]
    window: int | None = None


@dataclass(frozen=True, kw_only=True)
class MambaBucket:
    """Linear-attention layers that share one state shape; `state_bytes` of one layer on one GPU."""

    owner: Owner
    index: int
    layers: int
    state_bytes: int


Bucket = AttentionBucket | MambaBucket


def bytes_per_token(layers: AttentionLayers, *, tensor_parallel_size: int, dtype: Dtype) -> int:
    """2 * max(1, kv_heads / tp) * head_dim * dtype_bytes: 2048 for 2 heads of 256 in bf16.

    A per-token-head dtype adds an fp32 scale for K and one for V of every head: 2 * 2 * (256 + 4) = 1040.
    """
    heads = max(1, layers.kv_heads // tensor_parallel_size)
    scale = SCALE_BYTES if dtype in PER_TOKEN_HEAD else 0
    return 2 * heads * (layers.head_dim * DTYPE_BYTES[dtype] + scale)


def state_bytes(layers: MambaLayers, *, tensor_parallel_size: int, num_speculative_tokens: int) -> int:
    """Convolution and recurrent state of one layer on one GPU.

    The convolution keeps conv_kernel - 1 + K columns of 2 * k_heads * k_dim + v_heads * v_dim channels
    (mamba2: the same with groups for k_heads, every GPU at least one); the recurrent state is v_heads * v_dim * k_dim.
    Qwen3.5-35B-A3B at K = 8: 8192 * 11 * 2 + 32 * 128 * 128 * 4 = 2,277,376.
    """
    channels = 2 * _key_heads(layers, tensor_parallel_size) * layers.head_k_dim + layers.num_v_heads * layers.head_v_dim
    columns = layers.conv_kernel - 1 + num_speculative_tokens
    conv = channels // tensor_parallel_size * columns * DTYPE_BYTES[layers.conv_dtype]
    heads = layers.num_v_heads // tensor_parallel_size
    return conv + heads * layers.head_v_dim * layers.head_k_dim * DTYPE_BYTES[layers.ssm_dtype]


def _key_heads(layers: MambaLayers, tensor_parallel_size: int) -> int:
    """Key heads (mamba2: groups) over all GPUs; mamba2 repeats groups that do not divide among them."""
    if layers.kind == "mamba2" and layers.num_k_heads % tensor_parallel_size:
        return tensor_parallel_size
    return layers.num_k_heads


def buckets_of(inputs: PlanInputs) -> tuple[Bucket, ...]:
    """All buckets of one GPU as this vLLM allocates them: the target's in their order, then the drafter's."""
    settings = inputs.settings
    drafter = inputs.drafter
    if drafter is not None and inputs.method == "dflash" and inputs.capabilities.dflash_sliding_as_full:
        drafter = _all_full(drafter)
    target_dtype = resolve_dtype(settings.kv_dtype, inputs.target_dtype)
    return _buckets(inputs, target_dtype, drafter, drafter_kv_dtype(inputs))


def asked_buckets_of(inputs: PlanInputs) -> tuple[Bucket, ...]:
    """All buckets of one GPU as the model has them and the settings ask for, whatever this vLLM makes of it."""
    settings = inputs.settings
    target_dtype = resolve_dtype(settings.kv_dtype, inputs.target_dtype)
    drafter_dtype = resolve_dtype(settings.draft_kv_dtype, inputs.drafter_dtype)
    return _buckets(inputs, target_dtype, inputs.drafter, drafter_dtype)


def resolve_dtype(asked: KVDtype, model: Dtype) -> Dtype:
    return model if asked == "auto" else asked


def drafter_kv_dtype(inputs: PlanInputs) -> Dtype:
    """Dtype of the drafter's KV: the asked one, where this vLLM has an option to ask with."""
    engine = inputs.capabilities
    if inputs.method == "dflash" and engine.dflash_keeps_model_dtype:
        return inputs.drafter_dtype
    asked = inputs.settings.draft_kv_dtype if engine.draft_kv_dtype else inputs.settings.kv_dtype
    return resolve_dtype(asked, inputs.drafter_dtype)


def _all_full(drafter: Layers) -> Layers:
    """Sliding layers as full ones; alike layers are then one bucket."""
    merged: list[AttentionLayers | MambaLayers] = []
    for layers in drafter.buckets:
        if isinstance(layers, AttentionLayers):
            layers = replace(layers, kind="full", window=None)
            last = merged[-1] if merged else None
            if isinstance(last, AttentionLayers) and replace(last, count=layers.count) == layers:
                merged[-1] = replace(last, count=last.count + layers.count)
                continue
        merged.append(layers)
    return Layers(buckets=tuple(merged))


def _buckets(
    inputs: PlanInputs, target_dtype: Dtype, drafter: Layers | None, drafter_dtype: Dtype
) -> tuple[Bucket, ...]:
    found: list[Bucket] = []
    sides: list[tuple[Owner, tuple[AttentionLayers | MambaLayers, ...], Dtype]] = [
        ("target", inputs.target.buckets, target_dtype),
        ("drafter", drafter.buckets if drafter else (), drafter_dtype),
    ]
    for owner, layer_buckets, dtype in sides:
        for layers in layer_buckets:
            found.append(_bucket(layers, owner=owner, index=len(found), dtype=dtype, inputs=inputs))
    return tuple(found)


def _bucket(
    layers: AttentionLayers | MambaLayers, *, owner: Owner, index: int, dtype: Dtype, inputs: PlanInputs
) -> Bucket:
    tp = inputs.settings.tensor_parallel_size
    if isinstance(layers, MambaLayers):
        size = state_bytes(
            layers, tensor_parallel_size=tp, num_speculative_tokens=inputs.settings.num_speculative_tokens
        )
        if replays(inputs):
            keys, values = _key_heads(layers, tp) // tp, layers.num_v_heads // tp
            size += ring_bytes(layers, key_heads=keys, value_heads=values, tokens=ring_tokens(inputs))
        return MambaBucket(owner=owner, index=index, layers=layers.count, state_bytes=size)
    return AttentionBucket(
        owner=owner,
        index=index,
        kind=layers.kind,
        layers=layers.count,
        bytes_per_token=bytes_per_token(layers, tensor_parallel_size=tp, dtype=dtype),
        shape=(max(1, layers.kv_heads // tp), layers.head_dim, dtype),
        window=layers.window,
    )
