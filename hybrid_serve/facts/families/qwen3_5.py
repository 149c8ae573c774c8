"""Qwen3.5, dense and MoE, with or without the vision tower: the language model is in `text_config`."""

from hybrid_serve.facts.config import Config
from hybrid_serve.facts.families.base import MTPModules, TargetFamily
from hybrid_serve.facts.families.gdn import gdn_layers, gdn_mtp
from hybrid_serve.facts.layers import Dtype, Layers


def _text(config: Config) -> Config:
    """A text-only checkpoint (`model_type` qwen3_5_text) may have it all at the root."""
    return config.section("text_config") if "text_config" in config else config


def _layers(text: Config, dtype: Dtype, mamba_ssm_cache_dtype: Dtype | None) -> Layers:
    """vLLM 0.29's hook for this family (model_executor/models/config.py, Qwen3_5ForConditionalGenerationConfig)
    puts the text config's `mamba_ssm_dtype` in place of `auto`; without that field the model's dtype remains."""
    return gdn_layers(text, dtype, mamba_ssm_cache_dtype or text.optional_dtype("mamba_ssm_dtype") or dtype)


def _mtp(text: Config) -> MTPModules:
    return gdn_mtp(text, "mtp_num_hidden_layers")


QWEN3_5 = TargetFamily(
    name="qwen3.5",
    architectures=("Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration"),
    text=_text,
    layers=_layers,
    mtp=_mtp,
)
QWEN3_5_MOE = TargetFamily(
    name="qwen3.5-moe",
    architectures=("Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration"),
    text=_text,
    layers=_layers,
    mtp=_mtp,
)
