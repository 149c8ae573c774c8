"""What vLLM does unaided. Every step mirrors one of vLLM's, in its order, and names it.

1. refusals before a layer is looked at (`hybrid_serve.plan.refusals`);
2. align and specs (`hybrid_serve.plan.specs`);
3. one group if all layers are of one type, packed grouping if the layout is block-outermost and pages differ, else
   unify and group uniform pages (v1/core/kv_cache_utils.py; 0.33: kv_cache_planning.py);
4. the admission check, and what the model runner refuses.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from hybrid_serve.plan.buckets import MambaBucket
from hybrid_serve.plan.build import attention_group, finish, fits, largest_context, mamba_group, packed_unit
from hybrid_serve.plan.capacity import ceil_div
from hybrid_serve.plan.inputs import PlanInputs
from hybrid_serve.plan.kv_plan import GroupPlan, KVPlan, Pages
from hybrid_serve.plan.refusals import (
    block_over_batch,
    one_group_drafter,
    pages_do_not_unify,
    refusal,
    scattered_drafter,
    too_little_memory,
)
from hybrid_serve.plan.specs import LayerSpec, layer_specs
from hybrid_serve.plan.stock_packed import packed_groups, packed_splits, whole_group
from hybrid_serve.plan.verdict import Fits, Impossible, Verdict

__all__ = ["LayerSpec", "layer_specs", "stock"]


def stock(inputs: PlanInputs) -> Verdict:
    """vLLM's own outcome on these inputs: the plan it runs, or the exception it raises."""
    if (refused := refusal(inputs)) is not None:
        return refused
    grouped = _group(layer_specs(inputs), inputs)
    if isinstance(grouped, Impossible):
        return grouped
    plan, scattered = grouped
    if not fits(plan, inputs, inputs.settings.max_model_len):
        return too_little_memory(plan, inputs, largest_context(plan, inputs))
    if (refused := block_over_batch(plan, inputs)) is not None:
        return refused
    if scattered > 1 and one_group_drafter(inputs):
        return scattered_drafter(scattered, plan, inputs)
    return Fits(plan=plan)


class Grouped(NamedTuple):
    """The layout, and how many groups the drafter's layers fall into."""

    plan: KVPlan
    drafter_groups: int


def _group(specs: tuple[LayerSpec, ...], inputs: PlanInputs) -> Grouped | Impossible:
    """Step 3."""
    layout = inputs.settings.kv_cache_layout
    block_outermost = (layout or "").startswith("B")
    unit = packed_unit(((spec.bucket, spec.block_size) for spec in specs), inputs) if block_outermost else 1
    if len({spec.type_key for spec in specs}) == 1:
        pages: Pages = "uniform" if len({spec.merge_key for spec in specs}) == 1 else "packed"
        groups = [whole_group(specs, inputs)]
        plan = finish(groups, policy="stock", pages=pages, layout=layout, inputs=inputs, block_unit=unit)
        return Grouped(plan, drafter_groups=1)
    if block_outermost and len({spec.page for spec in specs}) > 1:
        packed = packed_splits(specs, inputs)
        groups = packed_groups(packed, inputs)
        plan = finish(groups, policy="stock", pages="packed", layout=layout, inputs=inputs, block_unit=unit)
        return Grouped(plan, _drafter_groups([(bucket.specs, number) for bucket, number in packed]))
    unified = unify(specs, inputs)
    if isinstance(unified, Impossible):
        return unified
    splits = uniform_splits(unified)
    groups = uniform_groups(splits, inputs)
    plan = finish(groups, policy="stock", pages="uniform", layout=layout, inputs=inputs)
    return Grouped(plan, _drafter_groups(splits))


def _drafter_groups(splits: Iterable[tuple[Sequence[LayerSpec], int]]) -> int:
    """Groups that the drafter's layers fall into: `validate_same_kv_cache_group` allows one.

    Layers are dealt out in turn, so n layers of a bucket lie in min(n, groups) of its groups.
    """
    found = 0
    for alike, number in splits:
        layers = sum(spec.bucket.layers for spec in alike if spec.bucket.owner == "drafter")
        found += min(layers, number)
    return found


def unify(specs: tuple[LayerSpec, ...], inputs: PlanInputs) -> tuple[LayerSpec, ...] | Impossible:
    """`unify_kv_cache_spec_page_size`: attention blocks scale up to the largest page, or are padded; states padded.

    Before 0.26 nothing is padded: the first layer whose page is no divisor ends the start, and so does the first
    mamba layer whose page is one (its block grows, its page does not: a bare AssertionError).
    """
    engine = inputs.capabilities
    pads = engine.cpu_pads_attention_pages if inputs.device == "cpu" else engine.pads_attention_pages
    largest = max(spec.page for spec in specs)
    unified = []
    for spec in specs:
        is_state = isinstance(spec.bucket, MambaBucket)
        divides = largest % spec.page == 0
        if spec.page != largest and not (engine.pads_mamba_pages if is_state else divides or pads):
            error = "AssertionError" if divides else "NotImplementedError"
            return pages_do_not_unify(spec, largest, error, inputs)
        scale = largest // spec.page if divides and not is_state else 1
        unified.append(replace(spec, block_size=spec.block_size * scale, page=largest))
    return tuple(unified)


def uniform_splits(specs: tuple[LayerSpec, ...]) -> list[tuple[list[LayerSpec], int]]:
    """Alike layers, and how many groups they are split into: as many as make groups as wide as the smallest bucket.

    If the largest bucket is less than 1.5 times the smallest, groups are as wide as the largest instead.
    """
    merged: dict[object, list[LayerSpec]] = {}
    for spec in specs:
        merged.setdefault(spec.merge_key, []).append(spec)
    counts = [sum(spec.bucket.layers for spec in alike) for alike in merged.values()]
    width = max(counts) if max(counts) < min(counts) * 1.5 else min(counts)
    return [(alike, ceil_div(count, width)) for alike, count in zip(merged.values(), counts, strict=True)]


def uniform_groups(splits: Iterable[tuple[Sequence[LayerSpec], int]], inputs: PlanInputs) -> list[GroupPlan]:
    """`_get_kv_cache_groups_uniform_page_size`: layers are dealt out in turn, layer i to group i modulo the groups."""
    groups = []
    for alike, number in splits:
        count = sum(spec.bucket.layers for spec in alike)
        sizes = [len(range(start, count, number)) for start in range(number)]
        groups += [one_group(alike[0], layers, inputs) for layers in sizes]
    return groups


def one_group(spec: LayerSpec, layers: int, inputs: PlanInputs) -> GroupPlan:
    """A group of `layers` layers that all have the spec."""
    if isinstance(spec.bucket, MambaBucket):
        return mamba_group(
            spec.bucket, layers=layers, block_size=spec.block_size, page_size_bytes=spec.page, inputs=inputs
        )
    return attention_group(
        spec.bucket, layers=layers, block_size=spec.block_size, page_size_bytes=spec.page, inputs=inputs
    )
