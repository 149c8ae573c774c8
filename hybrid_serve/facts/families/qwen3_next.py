"""Qwen3-Next: a flat config; the recurrent state in the model's dtype unless the user says otherwise."""

from hybrid_serve.facts.config import Config
from hybrid_serve.facts.families.base import MTPModules, TargetFamily
from hybrid_serve.facts.families.gdn import gdn_layers, gdn_mtp
from hybrid_serve.facts.layers import Dtype, Layers


def _text(config: Config) -> Config:
    return config


def _layers(text: Config, dtype: Dtype, mamba_ssm_cache_dtype: Dtype | None) -> Layers:
    """vLLM 0.29 has no config hook for this family (model_executor/models/config.py lists Qwen3.5 only), so it does
    not look at `mamba_ssm_dtype`: `auto` falls through to the convolution state's dtype, which is the model's."""
    return gdn_layers(text, dtype, mamba_ssm_cache_dtype or dtype)


def _mtp(text: Config) -> MTPModules:
    return gdn_mtp(text, "num_nextn_predict_layers")


QWEN3_NEXT = TargetFamily(
    name="qwen3-next",
    architectures=("Qwen3NextForCausalLM",),
    text=_text,
    layers=_layers,
    mtp=_mtp,
)
