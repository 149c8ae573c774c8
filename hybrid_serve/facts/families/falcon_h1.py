"""Falcon-H1: every layer has attention and mamba2 side by side, so there are two buckets of all layers."""

from hybrid_serve.facts.config import Config
from hybrid_serve.facts.families.base import TargetFamily, in_order
from hybrid_serve.facts.families.mamba2 import attention_kv_heads, mamba_d_layers, whole
from hybrid_serve.facts.layers import AttentionLayers, Dtype, Layers


def _layers(text: Config, dtype: Dtype, mamba_ssm_cache_dtype: Dtype | None) -> Layers:
    """vLLM builds a layer's attention before its mamba2 (model_executor/models/falcon_h1.py)."""
    attention = AttentionLayers(
        kind="full",
        count=1,
        kv_heads=attention_kv_heads(text, absent=8),
        head_dim=text.integer("head_dim", text.integer("hidden_size") // text.integer("num_attention_heads")),
    )
    mamba = mamba_d_layers(text, inner_size=_inner_size(text), dtype=dtype, ssm_dtype=mamba_ssm_cache_dtype)
    return in_order([attention, mamba] * text.integer("num_hidden_layers"))


def _inner_size(text: Config) -> int:
    """`mamba_d_ssm`, 1024 in the config class; null is `mamba_expand` times the hidden size."""
    if "mamba_d_ssm" in text.values:
        return text.integer("mamba_d_ssm", text.integer("mamba_expand", 2) * text.integer("hidden_size"))
    return 1024


FALCON_H1 = TargetFamily(
    name="falcon-h1",
    architectures=("FalconH1ForCausalLM",),
    text=whole,
    layers=_layers,
    # No SupportsEagle3, and get_mamba_state_shape_from_config leaves K out, so that vLLM may align pages too small.
    methods=(),
)
