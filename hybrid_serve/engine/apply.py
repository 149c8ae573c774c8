"""A plan applied to the real KV cache specs: the re-check, and vLLM's groups as the plan has them.

Runs in the engine core and in every worker. vLLM's types are taken from the specs at hand, so this module serves all
versions whose specs have the attributes that it reads.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hybrid_serve.plan.kv_plan import GroupPlan, KVPlan

Signature = tuple[str, int, int | None]


class PlanMismatchError(RuntimeError):
    """The plan does not fit the engine it was handed to; the message gives both sides."""


def signature_of_spec(spec: Any) -> Signature:
    """(kind, bytes, window) of a real spec: bytes of a mamba state, or of one token of attention.

    Releases name the bytes without padding differently, or not at all; a page without padding is that in all of them.
    """
    content = replace(spec, page_size_padded=None).page_size_bytes
    if hasattr(spec, "shapes"):
        return ("mamba", content, None)
    per_token, rest = divmod(content, spec.block_size)
    if rest:
        raise PlanMismatchError(f"a page of {content} bytes is no multiple of {spec.block_size} tokens")
    return ("attention", per_token, getattr(spec, "sliding_window", None))


def signature_of_group(group: GroupPlan) -> Signature:
    """The same of a planned group."""
    if group.kind == "mamba":
        return ("mamba", group.content_bytes, None)
    return ("attention", group.content_bytes // group.block_size, group.window)


def layers_of_buckets(plan: KVPlan, specs: Mapping[str, Any]) -> dict[int, list[str]]:
    """Layer names of each planned bucket.

    Real layers are matched by what they need, in the order in which the engine registered them; where target and
    drafter have equal layers, the target's come first.

    Raises:
        PlanMismatchError: the engine has other layers than the plan.
    """
    waiting: dict[Signature, list[str]] = defaultdict(list)
    for name, spec in specs.items():
        waiting[signature_of_spec(spec)].append(name)
    real = Counter({signature: len(names) for signature, names in waiting.items()})
    wanted: Counter[Signature] = Counter()
    counts: dict[int, int] = defaultdict(int)
    signatures: dict[int, Signature] = {}
    for group in plan.groups:
        signatures[group.bucket] = signature_of_group(group)
        counts[group.bucket] += group.layers
        wanted[signatures[group.bucket]] += group.layers
    if wanted != real:
        raise PlanMismatchError(_mismatch(plan, wanted, real))
    found: dict[int, list[str]] = {}
    for bucket in sorted(signatures):
        names = waiting[signatures[bucket]]
        found[bucket], waiting[signatures[bucket]] = names[: counts[bucket]], names[counts[bucket] :]
    return found


def _mismatch(plan: KVPlan, wanted: Mapping[Signature, int], real: Mapping[Signature, int]) -> str:
    def lines(counts: Mapping[Signature, int]) -> str:
        return "; ".join(
            f"{count} {kind} layers of {size:,} bytes" + (f" (window {window:,})" if window else "")
            for (kind, size, window), count in sorted(counts.items(), key=str)
        )

    return (
        f"KV plan {plan.plan_id} is for another engine: it has {lines(wanted)}, the engine has {lines(real)}. "
        "Plan again for these checkpoints, K, dtypes and tensor parallel size, and check that mamba_ssm_cache_dtype is "
        "the planned one"
    )


def planned_groups(plan: KVPlan, specs: Mapping[str, Any], group_spec: Any) -> list[Any]:
    """vLLM's KVCacheGroupSpec list for a plan.

    Args:
        specs: layer name -> KVCacheSpec, as the engine registered them.
        group_spec: vLLM's KVCacheGroupSpec class.

    The drafter's groups are marked as such (`is_eagle_group`): with no group marked, vLLM takes every group for the
    drafter's and prefix caching never hits a mamba group.
    """
    names = layers_of_buckets(plan, specs)
    per_bucket: Counter[int] = Counter(group.bucket for group in plan.groups)
    dealt: Counter[int] = Counter()
    groups = []
    for group in plan.groups:
        mine = names[group.bucket][dealt[group.bucket] :: per_bucket[group.bucket]]
        dealt[group.bucket] += 1
        if len(mine) != group.layers:
            raise PlanMismatchError(f"group of {group.layers} {group.kind} layers was dealt {len(mine)}: {mine}")
        shaped = [_shaped(specs[name], group) for name in mine]
        groups.append(group_spec(mine, shaped[0].merge(shaped), is_eagle_group=group.owner == "drafter"))
    return groups


def _shaped(spec: Any, group: GroupPlan) -> Any:
    """The spec with the plan's block size and page."""
    padded = None if group.page_size_bytes == group.content_bytes else group.page_size_bytes
    return replace(spec, block_size=group.block_size, page_size_padded=padded)


def group_rows(groups: list[Any], kinds: Mapping[str, str]) -> list[tuple[str, int, int, int]]:
    """(kind, layers, block_size, page_size_bytes) of each of vLLM's groups; `kinds` maps spec class names to ours."""
    rows = []
    for group in groups:
        spec = group.kv_cache_spec
        layers = len(group.layer_names)
        if hasattr(spec, "kv_cache_specs"):  # UniformTypeKVCacheSpecs: vLLM lists the first layer's
            spec = next(iter(spec.kv_cache_specs.values()))
        rows.append((kinds[type(spec).__name__], layers, spec.block_size, spec.page_size_bytes))
    return rows


KINDS = {"MambaSpec": "mamba", "FullAttentionSpec": "full", "SlidingWindowSpec": "sliding", "MLAAttentionSpec": "full"}


def rows_of_plan(plan: KVPlan) -> list[tuple[str, int, int, int]]:
    return [(g.kind, g.layers, g.block_size, g.page_size_bytes) for g in plan.groups]
