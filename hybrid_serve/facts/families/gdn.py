"""GDN (gated delta net) hybrids: what Qwen3-Next and Qwen3.5 configs have in common."""

from dataclasses import replace

from hybrid_serve.facts.config import Config
from hybrid_serve.facts.families.base import MTPModules, in_order
from hybrid_serve.facts.layers import AttentionLayers, Dtype, Layers, MambaLayers

LINEAR, FULL = "linear_attention", "full_attention"


def layer_types(text: Config) -> tuple[str, ...]:
    """`layer_types`, or every `full_attention_interval`-th layer full (default 4, as in both config classes)."""
    count = text.integer("num_hidden_layers")
    if "layer_types" not in text:
        interval = text.integer("full_attention_interval", 4)
        return tuple(LINEAR if (i + 1) % interval else FULL for i in range(count))
    types = text.strings("layer_types")
    if len(types) != count or not set(types) <= {LINEAR, FULL}:
        raise text.wrong("layer_types", f"num_hidden_layers = {count} entries, each {LINEAR} or {FULL}")
    return types


def gdn_layers(text: Config, dtype: Dtype, ssm_dtype: Dtype) -> Layers:
    """Buckets of a GDN hybrid. vLLM keeps the convolution state in the model's dtype (`mamba_cache_dtype` auto)."""
    kinds: dict[str, AttentionLayers | MambaLayers] = {
        LINEAR: MambaLayers(
            kind="gdn",
            count=1,
            num_k_heads=text.integer("linear_num_key_heads"),
            num_v_heads=text.integer("linear_num_value_heads"),
            head_k_dim=text.integer("linear_key_head_dim"),
            head_v_dim=text.integer("linear_value_head_dim"),
            conv_kernel=text.integer("linear_conv_kernel_dim"),
            conv_dtype=dtype,
            ssm_dtype=ssm_dtype,
        ),
        FULL: _full_attention(text),
    }
    return in_order(kinds[kind] for kind in layer_types(text))


def gdn_mtp(text: Config, field: str) -> MTPModules:
    """One full-attention layer of the target's shape for each module.

    vLLM (model_executor/models/qwen3_5_mtp.py, qwen3_next_mtp.py) builds one where the config has no `field`.
    """
    count = text.integer(field, 1, minimum=0)
    layers = (replace(_full_attention(text), count=count),) if count else ()
    return MTPModules(count=count, layers=Layers(buckets=layers))


def _full_attention(text: Config) -> AttentionLayers:
    return AttentionLayers(
        kind="full", count=1, kv_heads=text.integer("num_key_value_heads"), head_dim=text.integer("head_dim")
    )
