"""What an old vLLM does wrong with a DFlash drafter, beside its KV cache: corrected where possible, else said."""

import logging
from typing import Any

from hybrid_serve.engine.patches import dflash_hidden_states
from hybrid_serve.facts.capabilities import EngineCapabilities
from hybrid_serve.facts.checkpoint import read_drafter
from hybrid_serve.facts.layers import Layers

logger = logging.getLogger("vllm.hybrid_serve")


def address(vllm_config: Any, engine: EngineCapabilities) -> None:
    """Correct, or warn of, the faults that this release has with the drafter of an engine that is about to start."""
    speculative = vllm_config.speculative_config
    if speculative is None or speculative.method != "dflash":
        return
    if engine.dflash_reads_one_layer_early and (ids := dflash_hidden_states.correct(vllm_config)):
        logger.info(
            "hybrid_serve: vLLM %s takes a DFlash drafter's hidden states one layer early; corrected to %s (its own "
            "counting, the embedding is 0)",
            engine.version,
            list(ids),
        )
    if engine.dflash_sliding_as_full:
        drafter = read_drafter(speculative.model, speculative.revision)
        if warning := sliding_as_full(drafter.layers, engine.version):
            logger.warning("hybrid_serve: %s", warning)


def sliding_as_full(drafter: Layers, version: str) -> str | None:
    """What becomes of a drafter's sliding layers; None if it has none."""
    sliding = [layers for layers in drafter.attention if layers.kind == "sliding"]
    if not sliding:
        return None
    count, all_layers = sum(layers.count for layers in sliding), sum(layers.count for layers in drafter.attention)
    windows = ", ".join(f"{window:,}" for window in sorted({layers.window or 0 for layers in sliding}))
    return (
        f"vLLM {version} runs {count} of the drafter's {all_layers} layers with full attention instead of a sliding "
        f"window of {windows} tokens: beyond {windows} tokens of context it drafts worse than it was trained to, and "
        "its KV cache keeps every token. Use vLLM 0.26 or newer, or a drafter without sliding layers"
    )
