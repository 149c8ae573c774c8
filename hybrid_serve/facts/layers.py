"""The layer buckets of a model: what a KV plan needs to know about its layers, before tensor parallelism.

Pure values: no I/O, no torch. `hybrid_serve.facts.checkpoint` reads them from a `config.json`;
`hybrid_serve.plan` turns them into bytes.
"""

from dataclasses import dataclass
from typing import Literal

AttentionKind = Literal["full", "sliding"]
MambaKind = Literal["gdn", "mamba2"]
Dtype = Literal["fp32", "fp16", "bf16", "fp8", "int8_per_token_head", "fp8_per_token_head"]

DTYPE_BYTES: dict[Dtype, int] = {
    "fp32": 4,
    "fp16": 2,
    "bf16": 2,
    "fp8": 1,
    "int8_per_token_head": 1,
    "fp8_per_token_head": 1,
}
PER_TOKEN_HEAD: frozenset[Dtype] = frozenset({"int8_per_token_head", "fp8_per_token_head"})
"""KV dtypes that keep a scale of their own for K and for V of every token and head."""
SCALE_BYTES = 4


@dataclass(frozen=True, kw_only=True)
class AttentionLayers:
    """Attention layers that are alike: same heads, same window.

    Attributes:
        kind: `full`, or `sliding` (keeps only `window` tokens).
        count: how many layers.
        kv_heads: KV heads of the whole model, before tensor parallelism.
        head_dim: elements per head, of K and of V.
        window: sliding window in tokens; None for full attention.
    """

    kind: AttentionKind
    count: int
    kv_heads: int
    head_dim: int
    window: int | None = None


@dataclass(frozen=True, kw_only=True)
class MambaLayers:
    """Linear-attention (GDN) or mamba2 layers that are alike.

    Attributes:
        kind: `gdn` or `mamba2`. For mamba2: num_k_heads = n_groups, num_v_heads = heads,
            head_k_dim = state size, head_v_dim = head dim.
        count: how many layers.
        conv_kernel: taps of the causal convolution; its state keeps conv_kernel - 1 (+ K) columns.
        conv_dtype: of the convolution state; vLLM keeps it in the model's dtype.
        ssm_dtype: of the recurrent state (`mamba_ssm_cache_dtype`).
    """

    kind: MambaKind
    count: int
    num_k_heads: int
    num_v_heads: int
    head_k_dim: int
    head_v_dim: int
    conv_kernel: int
    conv_dtype: Dtype = "bf16"
    ssm_dtype: Dtype = "fp32"


@dataclass(frozen=True, kw_only=True)
class Layers:
    """The buckets of one model, in the order in which vLLM registers the first layer of each.

    `order` matters to stock vLLM: it groups layers in the order it meets them.
    """

    buckets: tuple[AttentionLayers | MambaLayers, ...]

    @property
    def mamba(self) -> tuple[MambaLayers, ...]:
        return tuple(b for b in self.buckets if isinstance(b, MambaLayers))

    @property
    def attention(self) -> tuple[AttentionLayers, ...]:
        return tuple(b for b in self.buckets if isinstance(b, AttentionLayers))

    @property
    def count(self) -> int:
        return sum(b.count for b in self.buckets)
