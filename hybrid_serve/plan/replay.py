"""ReplaySSM: one state and the inputs of recent tokens, instead of a state for every drafted token.

Without it a speculative step writes 1 + K states of each mamba layer, so that any prefix of the draft can be kept. With
it (`use_replayssm`) the step starts from one state and replays what was accepted, so a request holds one block in each
mamba group, and that block holds a ring of inputs as well.
"""

from dataclasses import replace

from hybrid_serve.facts.layers import DTYPE_BYTES, MambaLayers
from hybrid_serve.plan.inputs import PlanInputs
from hybrid_serve.plan.verdict import Impossible

FP32_BYTES = 4


def replays(inputs: PlanInputs) -> bool:
    """ReplaySSM is asked for, and this release has it for all of the target's mamba layers."""
    kinds = _kinds(inputs)
    return inputs.settings.use_replayssm and bool(kinds) and kinds <= inputs.capabilities.replayssm_kinds


def ring_tokens(inputs: PlanInputs) -> int:
    """Tokens whose inputs a block holds: replayssm_buffer_len, and the 1 + K that are being verified."""
    drafted = inputs.settings.num_speculative_tokens
    return inputs.settings.replayssm_buffer_len + (1 + drafted if drafted else 0)


def ring_bytes(layers: MambaLayers, *, key_heads: int, value_heads: int, tokens: int) -> int:
    """Bytes of one layer's ring on one GPU; `key_heads` and `value_heads` are that GPU's.

    mamba2: x (value_heads * v_dim) and B (key_heads * k_dim) in the model's dtype, dt (value_heads) in fp32 (vLLM
    0.32.0, mamba_utils.py, `append_replayssm_ring`).
    GDN: an estimate, since no release has it. What a gated delta rule must replay is the key, the gate and the
    corrected value; dtypes are those of the nearest kin that is released (Kimi Delta Attention's verify records,
    models/kimi_k3/nvidia/ops/recoverssm.py): keys in the model's dtype, corrected values in fp32.
    Qwen3.5-35B-A3B at K = 8: 25 tokens * (32 * 128 * 4 + 32 * 4 + 16 * 128 * 2) = 515,200.
    """
    model_bytes = DTYPE_BYTES[layers.conv_dtype]
    value_bytes = FP32_BYTES if layers.kind == "gdn" else model_bytes
    values = value_heads * layers.head_v_dim * value_bytes
    keys = key_heads * layers.head_k_dim * model_bytes
    return tokens * (values + value_heads * FP32_BYTES + keys)


def with_replayssm(inputs: PlanInputs) -> PlanInputs | None:
    """The same problem on a release that had ReplaySSM for these layers; None where it would change nothing.

    Prefix caching is left out: no release replays a draft with it.
    """
    kinds, settings = _kinds(inputs), inputs.settings
    if not kinds or not settings.num_speculative_tokens or settings.prefix_caching or replays(inputs):
        return None
    room = max(settings.replayssm_buffer_len, 1 + settings.num_speculative_tokens)
    return replace(
        inputs,
        settings=replace(settings, use_replayssm=True, replayssm_buffer_len=room),
        capabilities=replace(inputs.capabilities, replayssm_kinds=kinds),
    )


def refused_replay(inputs: PlanInputs) -> Impossible | None:
    """What `use_replayssm` cannot do here (vLLM 0.32.0, config/vllm.py, `validate_mamba_cached_kernel`)."""
    settings, engine = inputs.settings, inputs.capabilities
    if not settings.use_replayssm:
        return None
    missing = _kinds(inputs) - engine.replayssm_kinds
    if missing or not inputs.target.mamba:
        return _refused(
            f"use_replayssm is set, and vLLM {engine.version} does not replay a draft for this target's "
            f"{' and '.join(sorted(missing)) or 'full attention'} layers",
            "turn use_replayssm off",
        )
    if settings.num_speculative_tokens and settings.prefix_caching:
        return _refused(
            f"use_replayssm is set with prefix caching, which vLLM {engine.version} cannot combine with a draft",
            "turn one of the two off",
        )
    if settings.replayssm_buffer_len < 1 + settings.num_speculative_tokens:
        return _refused(
            f"replayssm_buffer_len is {settings.replayssm_buffer_len}, a draft of "
            f"{settings.num_speculative_tokens} needs {1 + settings.num_speculative_tokens}",
            "raise replayssm_buffer_len, or lower num_speculative_tokens",
        )
    return None


def _refused(reason: str, remedy: str) -> Impossible:
    return Impossible(reason=reason, remedy=remedy, error="ValueError")


def _kinds(inputs: PlanInputs) -> frozenset[str]:
    return frozenset(layers.kind for layers in inputs.target.mamba)
