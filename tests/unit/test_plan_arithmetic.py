"""Bytes of layers, states and requests, against figures that are public."""

import pytest

from hybrid_serve.facts.capabilities import CAPABILITIES, capabilities
from hybrid_serve.plan.buckets import AttentionBucket, MambaBucket, buckets_of
from hybrid_serve.plan.capacity import floor_bytes, request_bytes, states_per_request
from hybrid_serve.plan.decide import decide
from hybrid_serve.plan.kv_plan import EngineReport, KVPlan, differences
from tests.cases import CASES, case_named, inputs_of, with_settings

V029 = capabilities("0.29.0")


def test_the_seed_pair_has_the_published_bytes() -> None:
    state, target, sliding, full = buckets_of(inputs_of(case_named("seed-h20"), V029))
    assert isinstance(state, MambaBucket) and state.state_bytes == 2_277_376
    assert isinstance(target, AttentionBucket) and target.bytes_per_token == 2048
    assert isinstance(sliding, AttentionBucket) and sliding.bytes_per_token == 4096
    assert isinstance(full, AttentionBucket) and full.window is None and sliding.window == 4096


def test_tensor_parallelism_never_leaves_a_gpu_with_less_than_one_kv_head() -> None:
    inputs = with_settings(inputs_of(case_named("seed-h20"), V029), tensor_parallel_size=8)
    target = buckets_of(inputs)[1]
    assert isinstance(target, AttentionBucket) and target.bytes_per_token == 1024


def test_prefix_caching_costs_one_more_state() -> None:
    inputs = inputs_of(case_named("seed-measured-40g"), V029)
    cached = with_settings(inputs, prefix_caching=True)
    assert states_per_request(cached) == states_per_request(inputs) + 1 == 10


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_the_floor_is_the_tables_whatever_the_release(case: dict) -> None:
    for engine in CAPABILITIES.values():
        assert floor_bytes(inputs_of(case, engine), case["max_model_len"]) == case["floor_bytes"]


def test_a_plan_survives_its_journey_as_json() -> None:
    plan = decide(inputs_of(case_named("seed-measured-20g"), V029)).plan
    assert plan is not None
    assert KVPlan.from_json(plan.to_json()) == plan


def test_a_plan_with_a_field_missing_is_refused_by_name() -> None:
    plan = decide(inputs_of(case_named("seed-measured-20g"), V029)).plan
    assert plan is not None
    value = plan.to_json()
    del value["block_bytes"]
    with pytest.raises(ValueError, match="block_bytes"):
        KVPlan.from_json(value)


def test_the_plan_id_is_of_the_layout_and_not_of_the_memory() -> None:
    inputs = inputs_of(case_named("seed-measured-20g"), V029)
    plan, other = decide(inputs).plan, decide(with_settings(inputs, num_speculative_tokens=4)).plan
    assert plan is not None and other is not None
    assert plan.with_memory(40 << 30).plan_id == plan.plan_id != other.plan_id
    assert plan.with_memory(40 << 30).num_blocks == (40 << 30) // plan.block_bytes


def test_a_request_at_max_model_len_is_what_the_plan_says_it_is() -> None:
    inputs = inputs_of(case_named("seed-measured-20g"), V029)
    plan = decide(inputs).plan
    assert plan is not None
    assert request_bytes(plan, inputs, plan.max_model_len) == plan.request_bytes


def test_every_difference_between_plan_and_report_is_told() -> None:
    plan = decide(inputs_of(case_named("tiny-cpu"), V029)).plan
    assert plan is not None
    rows = tuple((g.kind, g.layers, g.block_size, g.page_size_bytes) for g in plan.groups)
    good = EngineReport(plan.num_blocks, rows, plan.kv_tokens, plan.concurrency, 1)
    assert differences(plan, good) == ()
    bad = EngineReport(plan.num_blocks - 1, rows[:-1], plan.kv_tokens - 7, plan.concurrency, 1)
    told = differences(plan, bad)
    assert len(told) == 3
    assert f"num_blocks: planned {plan.num_blocks}, got {plan.num_blocks - 1}" in told
