"""Searching once for replicas that differ in nothing but their memory."""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Protocol

from hybrid_serve.plan.inputs import PlanInputs
from hybrid_serve.plan.kv_plan import KVPlan

KEPT_SEARCHES = 1024


class Search(Protocol):
    """A search for a plan in one KV cache layout; None if there is none."""

    def __call__(self, inputs: PlanInputs, *, layout: str | None) -> KVPlan | None: ...


def memory_free(search: Callable[[PlanInputs, str | None], KVPlan | None]) -> Search:
    """A search whose layout does not depend on `kv_memory_bytes`, remembered by its other inputs.

    Still pure: equal inputs give equal plans, and the memory decides only how many blocks there are. A fleet measures
    a little other memory on every replica and would otherwise search as often. Nor does the layout depend on the unit
    that prefixes are hashed by, which the fleet agrees on once the layouts are known.
    """
    remembered = lru_cache(maxsize=KEPT_SEARCHES)(search)

    def over_memory(inputs: PlanInputs, *, layout: str | None) -> KVPlan | None:
        settings = replace(inputs.settings, prefix_match_unit=None)
        plan = remembered(replace(inputs, kv_memory_bytes=0, settings=settings), layout)
        return None if plan is None else plan.with_memory(inputs.kv_memory_bytes)

    return over_memory
