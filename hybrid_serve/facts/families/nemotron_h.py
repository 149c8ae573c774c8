"""Nemotron-H: mamba2, attention, MLP and MoE layers, each of one kind; only the first two have a cache."""

from hybrid_serve.facts.config import Config
from hybrid_serve.facts.families.base import Bucket, MTPModules, TargetFamily, in_order
from hybrid_serve.facts.families.mamba2 import FULL, LEGACY, MAMBA, attention_kv_heads, whole
from hybrid_serve.facts.layers import AttentionLayers, Dtype, Layers, MambaLayers

KINDS = {"M": MAMBA, "*": FULL, "-": "mlp", "E": "moe"}
"""Letters of `hybrid_override_pattern`."""


def _layers(text: Config, dtype: Dtype, mamba_ssm_cache_dtype: Dtype | None) -> Layers:
    """vLLM 0.29's hook for this family (NemotronHForCausalLMConfig) puts the config's `mamba_ssm_cache_dtype` in place
    of `auto`, and float32 where the config has none."""
    kinds: dict[str, Bucket] = {
        MAMBA: MambaLayers(
            kind="mamba2",
            count=1,
            num_k_heads=_either(text, "mamba_n_groups", "n_groups", 8),
            num_v_heads=text.integer("mamba_num_heads"),
            head_k_dim=text.integer("ssm_state_size"),
            head_v_dim=text.integer("mamba_head_dim"),
            conv_kernel=_either(text, "mamba_d_conv", "conv_kernel", 4),
            conv_dtype=dtype,
            ssm_dtype=mamba_ssm_cache_dtype or text.optional_dtype("mamba_ssm_cache_dtype") or "fp32",
        ),
        FULL: _attention(text),
    }
    return in_order(kinds[kind] for kind in _layer_types(text) if kind in kinds)


def _either(text: Config, older: str, newer: str, default: int) -> int:
    """Transformers' config class lets the older name win."""
    return text.integer(older if older in text else newer, default)


def _attention(text: Config) -> AttentionLayers:
    return AttentionLayers(
        kind="full", count=1, kv_heads=attention_kv_heads(text, absent=8), head_dim=text.integer("head_dim", 128)
    )


def _layer_types(text: Config) -> tuple[str, ...]:
    """`layers_block_type`, or the older `hybrid_override_pattern`; `num_hidden_layers` is not looked at."""
    return _types(text, "layers_block_type", "hybrid_override_pattern")


def _types(text: Config, field: str, pattern_field: str) -> tuple[str, ...]:
    if field in text:
        types = tuple(LEGACY.get(kind, kind) for kind in text.strings(field))
        if not types or not set(types) <= set(KINDS.values()):
            raise text.wrong(field, f"a list of {', '.join(KINDS.values())}")
        return types
    pattern = text.string(pattern_field)
    if not pattern or not set(pattern) <= set(KINDS):
        raise text.wrong(pattern_field, f"letters of {' '.join(KINDS)}")
    return tuple(KINDS[letter] for letter in pattern)


def _depth(text: Config) -> int:
    return len(_layer_types(text))


def _mtp(text: Config) -> MTPModules:
    """One module of attention and MoE layers; vLLM has no other (model_executor/models/nemotron_h_mtp.py)."""
    count = text.integer("num_nextn_predict_layers", 0, minimum=0)
    if not count:
        return MTPModules(count=0, layers=Layers(buckets=()))
    if count > 1:
        raise text.wrong("num_nextn_predict_layers", "1, the only number that vLLM runs for Nemotron-H")
    fields = "mtp_layers_block_type", "mtp_hybrid_override_pattern"
    types = _types(text, *fields) if any(field in text for field in fields) else (FULL, "moe")
    if not set(types) <= {FULL, "moe"}:
        raise text.wrong(fields[0] if fields[0] in text else fields[1], "attention and MoE layers only")
    return MTPModules(count=1, layers=in_order(_attention(text) for kind in types if kind == FULL))


NEMOTRON_H = TargetFamily(
    name="nemotron-h",
    architectures=("NemotronHForCausalLM", "NemotronHPuzzleForCausalLM"),
    text=whole,
    layers=_layers,
    depth=_depth,
    mtp=_mtp,
)
