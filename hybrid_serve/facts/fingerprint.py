"""Fingerprints: what two replicas compare before they serve under one model name."""

import hashlib
import json
from dataclasses import asdict

from hybrid_serve.facts.layers import Dtype, Layers
from hybrid_serve.facts.model import Fingerprint
from hybrid_serve.facts.weights import Weights


def fingerprint(
    *,
    role: str,
    hidden_size: int,
    vocab_size: int,
    dtype: Dtype,
    layers: Layers,
    weights: Weights,
    training: dict[str, object] | None = None,
) -> Fingerprint:
    """The fingerprint of a checkpoint: never of where it lies, and never of how one replica was told to run it.

    Args:
        role: the target's family or the drafter's method.
        layers: as the checkpoint itself has them, without a replica's `mamba_ssm_cache_dtype`.
        training: of a drafter: block size, mask token and target layers, which must match too.
    """
    geometry = {
        "role": role,
        "hidden_size": hidden_size,
        "vocab_size": vocab_size,
        "dtype": dtype,
        "layers": [{"type": type(bucket).__name__, **asdict(bucket)} for bucket in layers.buckets],
        "training": training or {},
    }
    text = json.dumps(geometry, sort_keys=True, separators=(",", ":"))
    return Fingerprint(geometry=hashlib.sha256(text.encode()).hexdigest()[:16], weights=weights.identity)
