"""Granite-4-H (GraniteMoeHybrid): every layer mamba2 or attention, and an MLP or MoE that has no cache."""

from hybrid_serve.facts.config import Config
from hybrid_serve.facts.families.base import Bucket, TargetFamily, in_order
from hybrid_serve.facts.families.mamba2 import FULL, LEGACY, MAMBA, attention_kv_heads, mamba_d_layers, whole
from hybrid_serve.facts.layers import AttentionLayers, Dtype, Layers


def _layers(text: Config, dtype: Dtype, mamba_ssm_cache_dtype: Dtype | None) -> Layers:
    """The modules have no `head_dim`: they divide the hidden size (model_executor/models/granitemoehybrid.py)."""
    hidden_size = text.integer("hidden_size")
    kinds: dict[str, Bucket] = {
        MAMBA: mamba_d_layers(
            text,
            inner_size=text.integer("mamba_expand", 2) * hidden_size,
            dtype=dtype,
            ssm_dtype=mamba_ssm_cache_dtype,
        ),
        FULL: AttentionLayers(
            kind="full",
            count=1,
            kv_heads=attention_kv_heads(text),
            head_dim=hidden_size // text.integer("num_attention_heads"),
        ),
    }
    return in_order(kinds[kind] for kind in _layer_types(text))


def _layer_types(text: Config) -> tuple[str, ...]:
    field = "layers_block_type" if "layers_block_type" in text and "layer_types" not in text else "layer_types"
    types = tuple(LEGACY.get(kind, kind) for kind in text.strings(field))
    count = text.integer("num_hidden_layers")
    if len(types) != count or not set(types) <= {MAMBA, FULL}:
        raise text.wrong(field, f"num_hidden_layers = {count} entries, each mamba or attention")
    return types


GRANITE_HYBRID = TargetFamily(
    name="granite-4-h",
    architectures=("GraniteMoeHybridForCausalLM",),
    text=whole,
    layers=_layers,
    # No SupportsEagle3, and get_mamba_state_shape_from_config leaves K out, so that vLLM may align pages too small.
    methods=(),
)
