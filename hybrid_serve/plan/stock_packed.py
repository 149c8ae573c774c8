"""Stock vLLM's grouping for block-outermost layouts (v1/core/kv_cache_utils.py, `_get_packed_kv_cache_groups`)."""

from collections.abc import Sequence
from dataclasses import dataclass

from hybrid_serve.plan.buckets import AttentionBucket, MambaBucket
from hybrid_serve.plan.build import attention_group, mamba_group
from hybrid_serve.plan.capacity import ceil_div
from hybrid_serve.plan.inputs import PlanInputs
from hybrid_serve.plan.kv_plan import GroupPlan
from hybrid_serve.plan.specs import LayerSpec


@dataclass(frozen=True)
class UniformBucket:
    """Layers of one type and block size, whatever their pages: vLLM's UniformTypeKVCacheSpecs."""

    specs: tuple[LayerSpec, ...]

    @property
    def is_mamba(self) -> bool:
        return isinstance(self.specs[0].bucket, MambaBucket)

    @property
    def is_sliding(self) -> bool:
        bucket = self.specs[0].bucket
        return isinstance(bucket, AttentionBucket) and bucket.kind == "sliding"

    @property
    def layers_by_page(self) -> dict[int, int]:
        """Layers of each page size in bytes."""
        counts: dict[int, int] = {}
        for spec in self.specs:
            counts[spec.page] = counts.get(spec.page, 0) + spec.bucket.layers
        return counts

    @property
    def layers(self) -> int:
        return sum(spec.bucket.layers for spec in self.specs)

    @property
    def balanced(self) -> bool:
        """Every page size has equally many layers: a pattern that repeats and may be split."""
        return len(set(self.layers_by_page.values())) == 1

    @property
    def repeats(self) -> int:
        return max(self.layers_by_page.values())

    def widest_group_bytes(self, groups: int) -> int:
        return sum(ceil_div(layers, groups) * page for page, layers in self.layers_by_page.items())


def packed_splits(specs: Sequence[LayerSpec], inputs: PlanInputs) -> list[tuple[UniformBucket, int]]:
    """Each bucket, and how many groups vLLM splits it into.

    A balanced bucket that mixes page sizes sets how many repeats of the pattern a group has; other buckets stay whole,
    and mamba buckets are split down to the states that the widest attention group's block holds. From 0.32 sliding
    buckets are split like mamba buckets if no bucket mixes pages.
    """
    by_type: dict[object, list[LayerSpec]] = {}
    for spec in specs:
        by_type.setdefault(spec.type_key, []).append(spec)
    buckets = [UniformBucket(tuple(alike)) for alike in by_type.values()]
    per_group = _repeats_per_group(buckets)
    sliding_too = inputs.capabilities.packs_sliding_as_states and not per_group

    def as_states(bucket: UniformBucket) -> bool:
        return bucket.is_mamba or (sliding_too and bucket.is_sliding)

    def split(bucket: UniformBucket) -> int:
        return ceil_div(bucket.repeats, per_group) if bucket.balanced and per_group else 1

    anchor = max(b.widest_group_bytes(b.layers if as_states(b) else split(b)) for b in buckets)
    splits = []
    for bucket in buckets:
        number = split(bucket)
        if as_states(bucket):
            states = max(anchor // bucket.specs[0].page, 1)
            number = max(number, ceil_div(bucket.layers, states))
        splits.append((bucket, number))
    return splits


def packed_groups(splits: Sequence[tuple[UniformBucket, int]], inputs: PlanInputs) -> list[GroupPlan]:
    """vLLM's packed groups."""
    groups: list[GroupPlan] = []
    for bucket, number in splits:
        if number == 1:
            groups.append(_group(bucket, bucket.layers, inputs))
            continue
        pages = len(bucket.layers_by_page)
        sizes = [len(range(start, bucket.repeats, number)) for start in range(number)]
        groups += [_group(bucket, repeats * pages, inputs) for repeats in sizes]
    return groups


def _repeats_per_group(buckets: list[UniformBucket]) -> int:
    """`_approximate_gcd`: repeats of a group such that rounding balanced buckets up adds least; 0 if none mix."""
    mixed = [b.repeats for b in buckets if b.balanced and len(b.layers_by_page) > 1]
    if not mixed:
        return 0
    counts = [b.repeats for b in buckets if b.balanced]
    candidates = range(max(mixed), max(counts) + 1)
    return min(candidates, key=lambda size: (sum(-count % size for count in counts), -size))


def whole_group(specs: Sequence[LayerSpec], inputs: PlanInputs) -> GroupPlan:
    """All layers in one group, whatever their pages: what vLLM does with layers of one type."""
    bucket = UniformBucket(tuple(specs))
    return _group(bucket, bucket.layers, inputs)


def _group(bucket: UniformBucket, layers: int, inputs: PlanInputs) -> GroupPlan:
    """A group of `layers` layers in the bucket's proportions; vLLM reports the first layer's spec for it."""
    first = bucket.specs[0]
    if isinstance(first.bucket, MambaBucket):
        return mamba_group(
            first.bucket, layers=layers, block_size=first.block_size, page_size_bytes=first.page, inputs=inputs
        )
    total = sum(page * count * layers // bucket.layers for page, count in bucket.layers_by_page.items())
    return attention_group(
        first.bucket,
        layers=layers,
        block_size=first.block_size,
        page_size_bytes=first.page,
        uneven_bytes=total - layers * first.page,
        inputs=inputs,
    )
