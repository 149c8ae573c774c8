"""Layers and groups in words."""

from collections.abc import Sequence

from hybrid_serve.facts.layers import MambaLayers
from hybrid_serve.plan.buckets import AttentionBucket, Bucket
from hybrid_serve.plan.inputs import PlanInputs
from hybrid_serve.plan.kv_plan import GroupPlan

MAMBA_NAMES = {"gdn": "GDN", "mamba2": "mamba2"}


def joined(parts: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


def times(ratio: float) -> str:
    """`twice`, `4 times`, `1.5 times`."""
    return "twice" if ratio == 2 else f"{ratio:.3g} times"


def kind_name(bucket: Bucket, inputs: PlanInputs) -> str:
    """`GDN`, `full attention`, `sliding attention`."""
    if isinstance(bucket, AttentionBucket):
        return f"{bucket.kind} attention"
    layers = inputs.target.buckets[bucket.index]
    return MAMBA_NAMES[layers.kind] if isinstance(layers, MambaLayers) else "mamba"


def mamba_names(inputs: PlanInputs) -> str:
    """`GDN`, or several joined."""
    return joined(list(dict.fromkeys(MAMBA_NAMES[layers.kind] for layers in inputs.target.mamba)))


def bucket_name(bucket: Bucket, inputs: PlanInputs) -> str:
    """`the target's 30 GDN layers`."""
    plural = "layer" if bucket.layers == 1 else "layers"
    return f"the {bucket.owner}'s {bucket.layers} {kind_name(bucket, inputs)} {plural}"


def bucket_facts(bucket: Bucket, inputs: PlanInputs) -> str:
    """What one layer of a bucket keeps on one GPU."""
    name = bucket_name(bucket, inputs)
    keep = "keeps" if bucket.layers == 1 else "keep"
    if not isinstance(bucket, AttentionBucket):
        return f"{name} {keep} a state of {bucket.state_bytes:,} bytes each"
    heads, dim, dtype = bucket.shape
    window = f", window {bucket.window:,}" if bucket.window else ""
    return f"{name} {keep} {bucket.bytes_per_token:,} bytes per token each ({heads} KV heads x {dim}, {dtype}{window})"


def groups_in_words(groups: Sequence[GroupPlan]) -> str:
    """`3 groups of 10 target mamba layers, 2 of 5 target full layers (blocks of 2,224 tokens) and ...`."""
    counted: dict[tuple[str, str, int], list[GroupPlan]] = {}
    for group in groups:
        counted.setdefault((group.owner, group.kind, group.block_size), []).append(group)
    parts = []
    for (owner, kind, block_size), alike in counted.items():
        widths = sorted({group.layers for group in alike})
        width = " or ".join(str(layers) for layers in widths)
        span = "" if kind == "mamba" else f" (blocks of {block_size:,} tokens)"
        parts.append(f"{len(alike)} of {width} {owner} {kind} {'layer' if widths == [1] else 'layers'}{span}")
    return joined(parts)
