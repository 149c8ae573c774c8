"""Facts of a target and of a drafter, read from config.json and weight headers."""

from dataclasses import replace

from hybrid_serve.facts.config import DTYPE_NAMES, Config
from hybrid_serve.facts.errors import FactsError, fail
from hybrid_serve.facts.families import DRAFTERS, NOT_PLANNED, TARGETS, DrafterMethod
from hybrid_serve.facts.families.base import DrafterShape, longest_context
from hybrid_serve.facts.fingerprint import fingerprint
from hybrid_serve.facts.layers import Dtype
from hybrid_serve.facts.model import DrafterFacts, TargetFacts
from hybrid_serve.facts.source import Checkpoint, open_checkpoint
from hybrid_serve.facts.weights import Weights


def read_target(source: str, revision: str | None = None, *, mamba_ssm_cache_dtype: str = "auto") -> TargetFacts:
    """Facts of a hybrid target.

    The dtype of the recurrent (SSM) state decides more than half of a GDN state's bytes. vLLM 0.29 settles it so:

    1. `--mamba-ssm-cache-dtype` (here `mamba_ssm_cache_dtype`), unless it is `auto`.
    2. `auto`, Qwen3.5 only: `mamba_ssm_dtype` of the text config, float32 in the published checkpoints; Nemotron-H
       only: `mamba_ssm_cache_dtype`, or else float32. The other families have no such hook, so the fields are not
       looked at.
    3. Otherwise the dtype of the convolution state, which is the model's (MambaStateDtypeCalculator): bf16, **not**
       fp32.
    4. On a CPU with AVX512-BF16, whatever is neither float32, float16 nor bfloat16 by then (that is, a remaining
       `auto`) becomes float32 (platforms/cpu.py). Other CPUs keep rule 3. This function cannot know the CPU, so give
       the engine the same explicit dtype as this function wherever rule 3 would apply.

    Args:
        source: a folder, or a hub id.
        revision: a branch, tag or commit, for a hub id only.
        mamba_ssm_cache_dtype: `auto`, `float32`, `float16` or `bfloat16`. It changes the layers, not the fingerprint.

    Raises:
        FactsError: nothing there, no hybrid, a drafter, or a field missing; the text says which and what to do.
    """
    checkpoint = open_checkpoint(source, revision)
    config = checkpoint.config
    architecture = _target_architecture(checkpoint)
    family = TARGETS[architecture]
    text = family.text(config)
    dtype = _model_dtype(config, text, checkpoint.weights)
    own_layers = family.layers(text, dtype, None)
    if not own_layers.mamba and all(bucket.kind == "full" for bucket in own_layers.attention):
        raise fail(
            f"{source} ({architecture}) is no hybrid: all its {own_layers.count} layers are full attention",
            "Serve it with stock vLLM; KV plans are for models whose layers differ",
        )
    hidden_size, vocab_size = text.integer("hidden_size"), text.integer("vocab_size")
    return TargetFacts(
        source=source,
        revision=checkpoint.revision,
        family=family.name,
        architecture=architecture,
        hidden_size=hidden_size,
        vocab_size=vocab_size,
        num_layers=family.depth(text),
        max_position_embeddings=longest_context(text),
        dtype=dtype,
        layers=family.layers(text, dtype, _ssm_dtype(mamba_ssm_cache_dtype)),
        weights_bytes=checkpoint.weights.data_bytes,
        fingerprint=fingerprint(
            role=family.name,
            hidden_size=hidden_size,
            vocab_size=vocab_size,
            dtype=dtype,
            layers=own_layers,
            weights=checkpoint.weights,
        ),
        kv_cache_dtype=_checkpoint_kv_dtype(config, text),
        methods=family.methods,
    )


def read_drafter(source: str, revision: str | None = None) -> DrafterFacts:
    """Facts of a drafter.

    `dtype` is the checkpoint's own; vLLM runs a drafter in its target's dtype (config/speculative.py), which
    `assemble.plan_inputs` takes into account.

    Raises:
        FactsError: nothing there, no known drafter, a target, or a field missing.
    """
    checkpoint = open_checkpoint(source, revision)
    config = checkpoint.config
    architecture, method = _drafter_method(checkpoint)
    dtype = _model_dtype(config, config.section("transformer_layer_config"), checkpoint.weights)
    return _drafter(checkpoint, architecture, method.name, method.shape(config), dtype)


def read_mtp(source: str, revision: str | None = None) -> DrafterFacts:
    """Facts of the MTP modules that a target's own checkpoint carries; its config decides, no weights are looked for.

    Raises:
        FactsError: no target, or none that carries MTP modules.
    """
    checkpoint = open_checkpoint(source, revision)
    architecture = _target_architecture(checkpoint)
    family = TARGETS[architecture]
    text = family.text(checkpoint.config)
    modules = family.mtp(text) if family.mtp else None
    if modules is None or not modules.count:
        why = "vLLM has no MTP modules for this family" if modules is None else "its config has none"
        raise fail(f"{source} ({architecture}) carries no MTP modules: {why}", "Give another drafter, or none")
    hidden_size = text.integer("hidden_size")
    shape = DrafterShape(
        hidden_size=hidden_size,
        target_hidden_size=hidden_size,
        vocab_size=text.integer("vocab_size"),
        max_position_embeddings=longest_context(text),
        layers=modules.layers,
    )
    dtype = _model_dtype(checkpoint.config, text, checkpoint.weights)
    facts = _drafter(checkpoint, architecture, "mtp", shape, dtype)
    return replace(facts, mtp_modules=modules.count, weights_bytes=0)


def _drafter(checkpoint: Checkpoint, architecture: str, method: str, shape: DrafterShape, dtype: Dtype) -> DrafterFacts:
    return DrafterFacts(
        source=checkpoint.source,
        revision=checkpoint.revision,
        method=method,
        architecture=architecture,
        hidden_size=shape.hidden_size,
        target_hidden_size=shape.target_hidden_size,
        vocab_size=shape.vocab_size,
        block_size=shape.block_size,
        samples_anchor=shape.samples_anchor,
        mask_token_id=shape.mask_token_id,
        target_layer_ids=shape.target_layer_ids,
        num_target_layers=shape.num_target_layers,
        max_position_embeddings=shape.max_position_embeddings,
        dtype=dtype,
        layers=shape.layers,
        weights_bytes=checkpoint.weights.data_bytes,
        fingerprint=fingerprint(
            role=method,
            hidden_size=shape.hidden_size,
            vocab_size=shape.vocab_size,
            dtype=dtype,
            layers=shape.layers,
            weights=checkpoint.weights,
            training={
                "block_size": shape.block_size,
                "mask_token_id": shape.mask_token_id,
                "target_layer_ids": shape.target_layer_ids,
                "target_hidden_size": shape.target_hidden_size,
            },
        ),
    )


def _target_architecture(checkpoint: Checkpoint) -> str:
    config, names = checkpoint.config, _architectures(checkpoint.config)
    for name in names:
        if name in TARGETS:
            return name
    shown = ", ".join(names)
    dense = {name for name, method in DRAFTERS.items() if method.name == "draft_model"}
    marks = ("dflash_config", "speculators_model_type", "draft_vocab_size")
    if set(names) & (DRAFTERS.keys() - dense) or any(mark in config for mark in marks):
        raise fail(
            f"{checkpoint.source} ({shown}) is a drafter, given as target",
            "Give it as drafter; perhaps the two are swapped",
        )
    _refuse_not_planned(checkpoint, names)
    raise fail(
        f"{checkpoint.source} ({shown}) is no hybrid target known here: linear-attention layers are known of "
        f"{_families()}",
        "Serve another model with stock vLLM, or add its family to hybrid_serve/facts/families",
    )


def _drafter_method(checkpoint: Checkpoint) -> tuple[str, DrafterMethod]:
    """The architecture of a drafter, and its method; a `speculators` config names only the method."""
    config = checkpoint.config
    speculators = config.values.get("speculators_model_type")
    if speculators is not None:
        for name, method in DRAFTERS.items():
            if method.speculators == speculators:
                return name, method
        known = ", ".join(sorted({method.speculators for method in DRAFTERS.values() if method.speculators}))
        raise config.wrong("speculators_model_type", f"one of {known}")
    names = _architectures(config)
    for name in names:
        if name == "LlamaForCausalLM" and "draft_vocab_size" in config:
            # EAGLE-3 drafters are published under this name too; vLLM then puts Eagle3 before it.
            return name, DRAFTERS[f"Eagle3{name}"]
        if name in DRAFTERS:
            return name, DRAFTERS[name]
    shown = ", ".join(names)
    if set(names) & TARGETS.keys():
        raise fail(
            f"{checkpoint.source} ({shown}) is a target, given as drafter",
            "Give it as target; perhaps the two are swapped. For its own MTP modules, give mtp as drafter",
        )
    _refuse_not_planned(checkpoint, names)
    raise fail(
        f"{checkpoint.source} ({shown}) is no drafter known here: known are {', '.join(sorted(DRAFTERS))}",
        "Give such a drafter made for this target, or none",
    )


def _refuse_not_planned(checkpoint: Checkpoint, names: tuple[str, ...]) -> None:
    for name in names:
        if name in NOT_PLANNED:
            raise fail(
                f"{checkpoint.source} ({name}) is not planned for: it has {NOT_PLANNED[name]}",
                "Serve it with stock vLLM, which plans its KV cache itself",
            )


def _architectures(config: Config) -> tuple[str, ...]:
    names = config.strings("architectures")
    if not names:
        raise config.missing("architectures")
    return names


def _families() -> str:
    names: dict[str, list[str]] = {}
    for architecture, family in TARGETS.items():
        names.setdefault(family.name, []).append(architecture)
    return "; ".join(f"{family} ({', '.join(architectures)})" for family, architectures in names.items())


def _model_dtype(config: Config, text: Config, weights: Weights) -> Dtype:
    """As vLLM's `dtype=auto`: root, text section, the weights' own dtypes; float32 is run in bfloat16."""
    for section in (config, text):
        for name in ("dtype", "torch_dtype"):
            dtype = section.optional_dtype(name)
            if dtype is not None:
                return "bf16" if dtype == "fp32" else dtype
    return "fp16" if weights.dtypes & {"F16", "BF16", "F32"} == {"F16"} else "bf16"


def _ssm_dtype(name: str) -> Dtype | None:
    if name == "auto":
        return None
    try:
        return DTYPE_NAMES[name]
    except KeyError:
        raise _unknown_ssm_dtype(name) from None


def _unknown_ssm_dtype(name: str) -> FactsError:
    return fail(f"mamba_ssm_cache_dtype is {name!r}", "Give auto, float32, float16 or bfloat16")


def _checkpoint_kv_dtype(config: Config, text: Config) -> Dtype | None:
    """fp8 where a quantised checkpoint brings its own KV cache dtype, which vLLM puts in place of `auto`.

    compressed-tensors and ModelOpt say so in `quantization_config`: a `kv_cache_scheme`, or
    `kv_cache_quant_algo` FP8. (A separate hf_quant_config.json, of older ModelOpt, is not read.)
    """
    for section in (config, text):
        for name in ("quantization_config", "compression_config"):
            scheme = section.section(name)
            algorithm = scheme.section("quantization").values.get("kv_cache_quant_algo") or scheme.values.get(
                "kv_cache_quant_algo"
            )
            if "kv_cache_scheme" in scheme or str(algorithm).upper() == "FP8":
                return "fp8"
    return None
