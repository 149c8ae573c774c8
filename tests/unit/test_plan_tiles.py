"""Where speed is preferred, a target's blocks on SM90 hold whole tiles of the attention kernel if that costs little."""

from dataclasses import replace

import pytest

from hybrid_serve.plan import search
from hybrid_serve.plan.decide import decide
from hybrid_serve.plan.inputs import PlanInputs, Prefer, Workload
from hybrid_serve.plan.kv_plan import KVPlan
from hybrid_serve.plan.search import mean_request_bytes
from tests.cases import with_settings
from tests.fleets import problem

CONTEXTS = (2048, 8192, 32_768, 131_072)


def asked(sm: int, context: int, prefer: Prefer, kv_dtype: str = "auto") -> PlanInputs:
    inputs = with_settings(problem(20), max_model_len=context, kv_dtype=kv_dtype, prefix_caching=False)
    return replace(inputs, sm=sm, workload=Workload(prefer=prefer))


def plan_of(inputs: PlanInputs) -> KVPlan:
    plan = decide(inputs, "best").plan
    assert plan is not None
    return plan


def target_block(plan: KVPlan) -> int:
    return next(group.block_size for group in plan.groups if group.kind == "full" and group.owner == "target")


@pytest.mark.parametrize("context", [8192, 32_768, 131_072])
def test_a_block_is_whole_tiles_on_sm90(context: int) -> None:
    assert target_block(plan_of(asked(90, context, "speed"))) % 80 == 0


def test_an_fp8_cache_has_other_tiles() -> None:
    assert target_block(plan_of(asked(90, 8192, "speed", "fp8"))) % 128 == 0


def test_other_gpus_take_what_holds_most() -> None:
    sizes = {target_block(plan_of(asked(sm, 8192, "speed"))) for sm in (80, 89, 120)}
    assert len(sizes) == 1 and sizes.pop() % 80 != 0


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("prefer", ["capacity", "speed"])
def test_it_costs_no_more_than_it_is_worth(context: int, prefer: Prefer) -> None:
    inputs = asked(90, context, prefer)
    most = mean_request_bytes(plan_of(replace(inputs, sm=89)), inputs)
    assert mean_request_bytes(plan_of(inputs), inputs) <= most * (1 + search.GATHER_COST[prefer])
