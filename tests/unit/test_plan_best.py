"""`best()`: invariants of every plan it gives, on generated geometries, and its worth on the table's."""

from collections import Counter
from dataclasses import replace
from math import gcd, lcm

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybrid_serve.facts.capabilities import capabilities
from hybrid_serve.plan.best import best
from hybrid_serve.plan.buckets import buckets_of
from hybrid_serve.plan.capacity import floor_bytes, kernel_block, request_bytes
from hybrid_serve.plan.inputs import PlanInputs, Workload
from hybrid_serve.plan.kv_plan import KVPlan
from hybrid_serve.plan.refusals import one_group_drafter
from hybrid_serve.plan.search import MAX_CACHE_INTERVAL, score
from hybrid_serve.plan.stock import stock
from hybrid_serve.plan.verdict import Fits, Impossible, NeedsPatch
from tests.cases import CASES, case_named, inputs_of, with_settings
from tests.strategies import planning_problems

V029 = capabilities("0.29.0")


def planned(inputs: PlanInputs) -> KVPlan | None:
    verdict = best(inputs)
    return verdict.plan if isinstance(verdict, NeedsPatch) else None


@given(planning_problems())
@settings(deadline=None, max_examples=150)
def test_every_layer_is_in_exactly_one_group(inputs: PlanInputs) -> None:
    plan = planned(inputs)
    if plan is not None:
        layers = Counter[int]()
        for group in plan.groups:
            layers[group.bucket] += group.layers
        assert layers == {bucket.index: bucket.layers for bucket in buckets_of(inputs)}


@given(planning_problems())
@settings(deadline=None, max_examples=150)
def test_no_group_needs_more_than_a_block_and_one_fills_it(inputs: PlanInputs) -> None:
    plan = planned(inputs)
    if plan is not None:
        assert all(group.content_bytes <= group.page_size_bytes for group in plan.groups)
        assert max(group.bytes_in_block for group in plan.groups) == plan.block_bytes
        assert plan.num_blocks == inputs.kv_memory_bytes // plan.block_bytes
        if plan.pages == "uniform":
            assert len({group.page_size_bytes for group in plan.groups}) == 1


@given(planning_problems())
@settings(deadline=None, max_examples=150)
def test_attention_blocks_are_whole_kernel_blocks(inputs: PlanInputs) -> None:
    plan = planned(inputs)
    if plan is not None:
        sizes = [group.block_size for group in plan.groups if group.kind != "mamba"]
        assert all(size > 0 and size % kernel_block(inputs) == 0 for size in sizes)


@given(planning_problems())
@settings(deadline=None, max_examples=150)
def test_best_is_never_below_stock(inputs: PlanInputs) -> None:
    unaided, verdict = stock(inputs), best(inputs)
    if isinstance(unaided, Fits):
        assert not isinstance(verdict, Impossible)
        assert score(verdict.plan, inputs) <= score(unaided.plan, inputs)


@given(planning_problems(device="cpu"))
@settings(deadline=None, max_examples=80)
def test_a_cpu_gets_uniform_pages_and_its_drafter_one_group(inputs: PlanInputs) -> None:
    plan = planned(inputs)
    assert one_group_drafter(inputs)
    if plan is not None:
        assert plan.pages == "uniform"
        assert sum(group.owner == "drafter" for group in plan.groups) == (1 if inputs.drafter else 0)


@given(planning_problems(device="cuda", prefix_caching=True))
@settings(deadline=None, max_examples=80)
def test_prefix_caching_gets_block_sizes_that_it_can_use(inputs: PlanInputs) -> None:
    plan = planned(inputs)
    if plan is not None:
        sizes = [group.block_size for group in plan.groups]
        assert lcm(*sizes) <= MAX_CACHE_INTERVAL
        assert gcd(*sizes) >= kernel_block(inputs)


@given(planning_problems())
@settings(deadline=None, max_examples=40)
def test_equal_inputs_give_equal_plans(inputs: PlanInputs) -> None:
    assert best(inputs) == best(replace(inputs))


@pytest.mark.parametrize(("context", "least"), [(2048, 0.965), (8192, 0.96), (32768, 0.975), (131072, 0.985)], ids=str)
@pytest.mark.parametrize(("kv", "draft"), [("bf16", "bf16"), ("fp8", "bf16"), ("fp8", "fp8")])
def test_the_seed_geometry_is_served_near_its_floor(context: int, least: float, kv: str, draft: str) -> None:
    inputs = with_settings(inputs_of(case_named("seed-measured-40g"), V029), kv_dtype=kv, draft_kv_dtype=draft)
    inputs = replace(inputs, workload=Workload(contexts=((context, 1.0),)))
    plan = planned(inputs)
    assert plan is not None
    assert plan.pages == "packed" and len(plan.groups) <= 10
    assert floor_bytes(inputs, context) / request_bytes(plan, inputs, context) >= least


def test_where_a_drafter_is_scattered_stock_fails_and_best_serves() -> None:
    inputs = inputs_of(case_named("coder-next-dense-4b-fp8"), V029)
    assert isinstance(stock(inputs), Impossible)
    verdict = best(inputs)
    assert isinstance(verdict, NeedsPatch) and "does not start" in verdict.reason


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_best_starts_wherever_one_request_fits(case: dict) -> None:
    inputs = inputs_of(case, V029)
    verdict = best(inputs)
    if floor_bytes(inputs, case["max_model_len"]) < 0.9 * case["kv_memory_bytes"]:
        assert not isinstance(verdict, Impossible)


def test_memory_for_no_request_is_refused_with_what_would_fit() -> None:
    inputs = replace(inputs_of(case_named("seed-measured-40g"), V029), kv_memory_bytes=1 << 30)
    verdict = best(inputs)
    assert isinstance(verdict, Impossible) and verdict.max_model_len
    shorter = with_settings(inputs, max_model_len=verdict.max_model_len)
    assert not isinstance(best(shorter), Impossible)
    assert "max_model_len" in verdict.remedy


def test_a_mixed_drafter_on_a_cpu_is_refused_before_anything_starts() -> None:
    inputs = replace(inputs_of(case_named("seed-h20"), V029), device="cpu", sm=None)
    verdict = best(with_settings(inputs, prefix_caching=False))
    assert isinstance(verdict, Impossible) and "5 sliding, 1 full" in verdict.reason


def test_prefix_caching_on_a_cpu_is_refused_before_the_engine_dies_of_it() -> None:
    verdict = best(with_settings(inputs_of(case_named("tiny-cpu"), V029), prefix_caching=True))
    assert isinstance(verdict, Impossible) and "prefix caching" in verdict.remedy


def test_a_layout_that_the_user_set_is_kept() -> None:
    inputs = inputs_of(case_named("seed-measured-40g"), V029)
    uniform = planned(with_settings(inputs, kv_cache_layout="LBNHC"))
    packed = planned(with_settings(inputs, kv_cache_layout="BLNHC"))
    assert uniform is not None and (uniform.pages, uniform.kv_cache_layout) == ("uniform", "LBNHC")
    assert packed is not None and (packed.pages, packed.kv_cache_layout) == ("packed", "BLNHC")


@pytest.mark.parametrize("context", [2048, 8192, 32768, 131072])
@pytest.mark.parametrize(("kv", "draft"), [("bf16", "bf16"), ("fp8", "bf16"), ("fp8", "fp8")])
def test_for_speed_fewer_groups_are_taken_for_a_few_percent_of_memory(context: int, kv: str, draft: str) -> None:
    inputs = with_settings(inputs_of(case_named("seed-measured-40g"), V029), kv_dtype=kv, draft_kv_dtype=draft)
    workload = Workload(contexts=((context, 1.0),))
    roomy = planned(replace(inputs, workload=workload))
    fast = planned(replace(inputs, workload=replace(workload, prefer="speed")))
    assert roomy is not None and fast is not None
    assert len(fast.groups) <= len(roomy.groups)
    assert request_bytes(fast, inputs, context) <= 1.05 * request_bytes(roomy, inputs, context)
    if (context, kv) == (8192, "bf16"):
        assert (len(roomy.groups), len(fast.groups)) == (9, 5)


@given(planning_problems(), st.integers(1, 8))
@settings(deadline=None, max_examples=80)
def test_for_speed_at_most_a_twentieth_is_given_up_and_never_what_stock_holds(inputs: PlanInputs, shorter: int) -> None:
    context = max(1, inputs.settings.max_model_len // shorter)
    inputs = replace(inputs, workload=Workload(contexts=((context, 1.0),)))
    roomy, fast = best(inputs), best(replace(inputs, workload=replace(inputs.workload, prefer="speed")))
    unaided = stock(inputs)
    assert isinstance(roomy, Impossible) == isinstance(fast, Impossible)
    if isinstance(roomy, Impossible) or isinstance(fast, Impossible):
        return
    assert request_bytes(fast.plan, inputs, context) <= 1.051 * request_bytes(roomy.plan, inputs, context)
    if isinstance(unaided, Fits):
        assert request_bytes(fast.plan, inputs, context) <= request_bytes(unaided.plan, inputs, context)


def test_for_speed_the_longest_request_keeps_its_room_too() -> None:
    inputs = inputs_of(case_named("mtp3-2x3090-1072"), V029)
    inputs = replace(inputs, workload=Workload(contexts=((512, 1.0),)))
    roomy, fast = best(inputs), best(replace(inputs, workload=replace(inputs.workload, prefer="speed")))
    assert not isinstance(roomy, Impossible) and not isinstance(fast, Impossible)
    assert fast.plan.kv_tokens >= 0.95 * roomy.plan.kv_tokens
