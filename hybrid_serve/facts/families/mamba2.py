"""What configs of mamba2 hybrids have in common.

vLLM registers one state for each mamba2 layer (model_executor/layers/mamba/mamba_mixer2.py): the convolution in the
model's dtype (`mamba_cache_dtype` auto), the recurrent state in `mamba_ssm_cache_dtype`, which `auto` takes from there
too. Only Nemotron-H has a hook of its own for it (model_executor/models/config.py).
"""

from hybrid_serve.facts.config import Config
from hybrid_serve.facts.layers import Dtype, MambaLayers

MAMBA, FULL = "linear_attention", "full_attention"
LEGACY = {"mamba": MAMBA, "attention": FULL}
"""Names of layer types that transformers rewrites (configuration_utils.py, remap_legacy_layer_types)."""


def whole(text: Config) -> Config:
    """A flat config describes the language model at its root."""
    return text


def mamba_d_layers(text: Config, *, inner_size: int, dtype: Dtype, ssm_dtype: Dtype | None) -> MambaLayers:
    """One layer as Granite-4-H and Falcon-H1 describe it; defaults are those of their config classes.

    `inner_size` is heads * head dim, which transformers checks and from which it takes a head dim of `auto`.
    """
    heads = text.integer("mamba_n_heads")
    if inner_size % heads:
        raise text.wrong("mamba_n_heads", f"a divisor of the layer's inner size {inner_size}")
    head_dim = inner_size // heads
    if text.values.get("mamba_d_head") not in (None, "auto", head_dim):
        raise text.wrong("mamba_d_head", f"{head_dim}, as {heads} heads of an inner size {inner_size} have")
    return MambaLayers(
        kind="mamba2",
        count=1,
        num_k_heads=text.integer("mamba_n_groups", 1),
        num_v_heads=heads,
        head_k_dim=text.integer("mamba_d_state", 256),
        head_v_dim=head_dim,
        conv_kernel=text.integer("mamba_d_conv", 4),
        conv_dtype=dtype,
        ssm_dtype=ssm_dtype or dtype,
    )


def attention_kv_heads(text: Config, absent: int | None = None) -> int:
    """KV heads; null is one per query head, and so is an absent field unless its config class has another default."""
    heads = text.integer("num_attention_heads")
    return text.integer("num_key_value_heads", heads if "num_key_value_heads" in text.values else absent or heads)
