"""Correction for vLLM 0.20.1 to 0.23: a DFlash drafter reads the hidden states one layer too early.

`dflash_config.target_layer_ids` names the layers *after* which the hidden states are taken, counted from 0; vLLM counts
the embedding as 0, and these releases use the ids as they are. 0.24 adds one
(v1/worker/gpu_model_runner.py, _get_eagle3_aux_layers_from_config). The drafter still drafts, only worse.

`eagle_aux_hidden_state_layer_ids` wins over those ids in every release and is counted vLLM's way, so it is set on the
drafter's configuration before any process starts: it travels with it, and unlike `target_layer_ids` it is part of the
hash that tells compiled graphs apart.

Remove when no supported vLLM is older than 0.24.
"""

from typing import Any


def correct(vllm_config: Any) -> tuple[int, ...] | None:
    """Name the layers in vLLM's counting. Idempotent; None if there is nothing to correct.

    Answers the ids that were set: (2, 5, 7) for target_layer_ids [1, 4, 6].
    """
    speculative = vllm_config.speculative_config
    if speculative is None or speculative.method != "dflash":
        return None
    drafter = speculative.draft_model_config.hf_config
    dflash = getattr(drafter, "dflash_config", None)
    ids = dflash.get("target_layer_ids") if isinstance(dflash, dict) else None
    if not ids or getattr(drafter, "eagle_aux_hidden_state_layer_ids", None):
        return None
    drafter.eagle_aux_hidden_state_layer_ids = [i + 1 for i in ids]
    return tuple(drafter.eagle_aux_hidden_state_layer_ids)
