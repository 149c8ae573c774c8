"""gpt-oss: sliding and full attention in turn; no recurrent layers."""

from dataclasses import replace

from hybrid_serve.facts.config import Config
from hybrid_serve.facts.families.base import TargetFamily, in_order
from hybrid_serve.facts.families.mamba2 import attention_kv_heads, whole
from hybrid_serve.facts.layers import AttentionLayers, Dtype, Layers


def _layers(text: Config, dtype: Dtype, mamba_ssm_cache_dtype: Dtype | None) -> Layers:
    """vLLM makes every other layer sliding, the first one included, and does not look at `layer_types`
    (model_executor/models/gpt_oss.py)."""
    full = AttentionLayers(
        kind="full", count=1, kv_heads=attention_kv_heads(text, absent=8), head_dim=text.integer("head_dim", 64)
    )
    window = text.optional_integer("sliding_window") if "sliding_window" in text.values else 128
    sliding = full if window is None else replace(full, kind="sliding", window=window)
    return in_order(full if layer % 2 else sliding for layer in range(text.integer("num_hidden_layers")))


GPT_OSS = TargetFamily(name="gpt-oss", architectures=("GptOssForCausalLM",), text=whole, layers=_layers)
