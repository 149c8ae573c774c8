"""Where speed is preferred, a target's blocks on SM90 hold whole tiles of the attention kernel if that costs little."""

from dataclasses import replace

import pytest

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


@pytest.mark.parametrize("context", CONTEXTS)
def test_a_block_is_whole_tiles_on_sm90(context: int) -> None:
    assert target_block(plan_of(asked(90, context, "speed"))) % 80 == 0


def test_a_context_shorter_than_a_tile_more_still_has_whole_tiles() -> None:
    assert target_block(plan_of(asked(90, 1000, "speed"))) % 80 == 0


def test_an_fp8_cache_has_other_tiles() -> None:
    without, on_sm90 = (target_block(plan_of(asked(sm, 131_072, "speed", "fp8"))) for sm in (89, 90))
    assert without % 128 != 0 and on_sm90 % 128 == 0


def test_dtypes_of_other_kernels_have_no_tiles() -> None:
    for context in CONTEXTS:
        plans = [plan_of(asked(sm, context, "speed", "fp8_per_token_head")) for sm in (89, 90)]
        assert plans[0] == plans[1]


@pytest.mark.parametrize("kv_dtype", ["auto", "fp8"])
@pytest.mark.parametrize("context", CONTEXTS)
def test_where_capacity_is_preferred_tiles_do_not_count(context: int, kv_dtype: str) -> None:
    inputs = asked(90, context, "capacity", kv_dtype)
    bytes_without, bytes_with = (mean_request_bytes(plan_of(replace(inputs, sm=sm)), inputs) for sm in (89, 90))
    assert bytes_with <= 1.001 * bytes_without


@pytest.mark.parametrize("kv_dtype", ["auto", "fp8"])
@pytest.mark.parametrize("context", CONTEXTS)
def test_it_costs_at_most_2_percent_of_the_capacity(context: int, kv_dtype: str) -> None:
    inputs = asked(90, context, "speed", kv_dtype)
    without, with_tiles = plan_of(replace(inputs, sm=89)), plan_of(inputs)
    fewer = len(without.groups) - len(with_tiles.groups)
    bytes_without, bytes_with = (mean_request_bytes(plan, inputs) for plan in (without, with_tiles))
    assert bytes_with <= bytes_without * (1.02 + 0.01 * max(0, fewer))


def test_other_gpus_take_what_holds_most() -> None:
    sizes = {target_block(plan_of(asked(sm, 8192, "speed"))) for sm in (80, 89, 120)}
    assert len(sizes) == 1 and sizes.pop() % 80 != 0
