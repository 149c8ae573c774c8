"""What a fleet of unlike pools agrees on, and which pool it is that can't."""

import json
import subprocess
import sys
from dataclasses import replace
from math import gcd

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from hybrid_serve.facts.capabilities import capabilities
from hybrid_serve.facts.layers import AttentionLayers, Layers
from hybrid_serve.negotiation.agreement import (
    Agreement,
    FleetFacts,
    Refusal,
    agree,
    inputs_under,
    prefix_unit,
    refused_unit,
)
from hybrid_serve.plan.decide import decide
from hybrid_serve.plan.inputs import EngineSettings, PlanInputs
from tests.cases import with_settings
from tests.fleets import DRAFTER, SEED, TARGET, fleet_of, problem
from tests.strategies import planning_problems

MODELS_LIMIT = 262144


def agreed(fleet: FleetFacts) -> Agreement:
    answer = agree(fleet)
    assert isinstance(answer, Agreement), answer
    return answer


def refused(fleet: FleetFacts) -> Refusal:
    answer = agree(fleet)
    assert isinstance(answer, Refusal), answer
    return answer


def unlike(**settings: object) -> dict[str, PlanInputs]:
    """Three pools that differ in memory."""
    return {"h200": problem(80, **settings), "h20": problem(40, **settings), "l40s": problem(6, **settings)}


def test_the_configured_length_holds_for_all_pools_that_hold_it() -> None:
    answer = agreed(fleet_of(unlike(), max_model_len=32768))
    assert answer.max_model_len == 32768
    assert (answer.target_fingerprint, answer.drafter_fingerprint) == (TARGET, DRAFTER)


def test_the_pool_that_cannot_hold_the_configured_length_is_named_with_numbers_and_remedy() -> None:
    pools = unlike() | {"l40s": problem(1)}
    refusal = refused(fleet_of(pools, max_model_len=MODELS_LIMIT))
    assert refusal.pool == "l40s"
    assert "262,144 tokens needs" in refusal.reason and f"there are {2**30:,}" in refusal.reason
    largest = int(refusal.reason.rpartition("that fits is ")[2].rstrip(")").replace(",", ""))
    assert f"lower max_model_len to {largest:,}" in refusal.remedy
    assert agreed(fleet_of(pools, max_model_len=largest)).max_model_len == largest


def test_the_fleets_minimum_is_the_most_that_the_smallest_pool_holds() -> None:
    pools = {name: with_settings(inputs, max_model_len=MODELS_LIMIT) for name, inputs in unlike().items()}
    pools["l40s"] = replace(pools["l40s"], kv_memory_bytes=2**30)
    length = agreed(fleet_of(pools, max_model_len=None)).max_model_len
    assert 0 < length < MODELS_LIMIT
    assert refused(fleet_of(pools, max_model_len=length + 1)).pool == "l40s"
    assert isinstance(agree(fleet_of(pools, max_model_len=length)), Agreement)


def test_the_models_own_limit_caps_the_fleets_minimum() -> None:
    pools = {"h200": problem(80, max_model_len=40960), "h20": problem(60, max_model_len=40960)}
    assert agreed(fleet_of(pools, max_model_len=None)).max_model_len == 40960


def test_a_pool_that_holds_no_request_at_all_refuses_the_fleets_minimum() -> None:
    pools = {"h200": problem(80), "tiny": problem(0.01)}
    refusal = refused(fleet_of(pools, max_model_len=None))
    assert refusal.pool == "tiny" and "no context fits" in refusal.remedy


def test_a_guessed_pool_is_not_refused_for_memory_and_lowers_nothing() -> None:
    pools = {"h200": problem(80, max_model_len=MODELS_LIMIT), "any": problem(0.5, max_model_len=MODELS_LIMIT)}
    alone = agreed(fleet_of({"h200": pools["h200"]}, max_model_len=None))
    assert agreed(fleet_of(pools, max_model_len=None, guessed=("any",))).max_model_len == alone.max_model_len
    assert agreed(fleet_of(pools, max_model_len=MODELS_LIMIT, guessed=("any",))).max_model_len == MODELS_LIMIT
    assert refused(fleet_of(pools, max_model_len=MODELS_LIMIT)).pool == "any"


def test_a_guessed_pool_is_refused_for_what_no_memory_mends() -> None:
    pools = {"h200": problem(80), "odd": problem(80, tensor_parallel_size=3)}
    refusal = refused(fleet_of(pools, guessed=("odd",)))
    assert refusal.pool == "odd" and "tensor_parallel_size 3" in refusal.reason


def test_what_a_replica_measured_counts_over_what_its_pool_declared() -> None:
    pools = {"h200": problem(80, max_model_len=MODELS_LIMIT), "h20": problem(80, max_model_len=MODELS_LIMIT)}
    fleet = fleet_of(pools, max_model_len=None)
    measured = fleet.measured("h20", problem(1, max_model_len=99))
    assert measured.generation == fleet.generation
    assert agreed(measured).max_model_len < agreed(fleet).max_model_len
    only = fleet_of({"h20": problem(1, max_model_len=MODELS_LIMIT)}, max_model_len=None)
    assert agreed(measured).max_model_len == agreed(only).max_model_len


def test_without_prefix_caching_there_is_no_unit_to_agree_on() -> None:
    assert agreed(fleet_of(unlike())).prefix_match_unit is None


def test_one_unit_divides_the_blocks_of_every_pools_plan() -> None:
    pools = {f"k{k}": problem(40, prefix_caching=True, num_speculative_tokens=k) for k in (3, 4, 8)}
    answer = agreed(fleet_of(pools))
    own = {name: prefix_unit(plan_under(answer, inputs)) for name, inputs in pools.items()}
    assert len(set(own.values())) > 1, "pools with unlike blocks are what this test is about"
    assert answer.prefix_match_unit == gcd(*own.values())


def test_a_pool_without_prefix_caching_is_told_no_unit_and_has_no_say() -> None:
    caching, plain = problem(40, prefix_caching=True), problem(40)
    answer = agreed(fleet_of({"caching": caching, "plain": plain}))
    assert answer.prefix_match_unit == agreed(fleet_of({"caching": caching})).prefix_match_unit
    assert inputs_under(answer, caching).settings.prefix_match_unit == answer.prefix_match_unit
    assert inputs_under(answer, plain).settings.prefix_match_unit is None


def one_group(layers: int = 8) -> PlanInputs:
    """A target of full attention alone: one group, which vLLM hashes by its whole block."""
    full = AttentionLayers(kind="full", count=layers, kv_heads=2, head_dim=128)
    plain = EngineSettings(max_model_len=8192, prefix_caching=True)
    return replace(SEED, target=Layers(buckets=(full,)), drafter=None, settings=plain)


def test_an_engine_with_one_group_hashes_whole_blocks_so_its_block_must_be_the_unit() -> None:
    alone = with_settings(one_group(), block_size=64)
    plan = plan_of(alone)
    assert len(plan.groups) == 1
    own = plan.groups[0].block_size
    assert refused_unit(plan, own, "a") is None
    refusal = refused_unit(plan, own // 2, "a")
    assert refusal is not None and "whatever it is told" in refusal.reason


def test_a_release_without_the_option_must_hash_by_the_agreed_unit_unaided() -> None:
    old = replace(problem(40, prefix_caching=True, max_model_len=4096), capabilities=capabilities("0.20.1"))
    plan = plan_of(old)
    own = prefix_unit(plan)
    assert refused_unit(plan, own, "old") is None
    refusal = refused_unit(plan, own // 2, "old")
    assert refusal is not None and "vLLM 0.20.1 hashes every" in refusal.reason
    answer = agreed(fleet_of({"old": old}, max_model_len=4096))
    assert answer.prefix_match_unit == own and inputs_under(answer, old).settings.prefix_match_unit is None


def test_the_unit_changes_no_plan() -> None:
    inputs = problem(40, prefix_caching=True)
    assert plan_of(with_settings(inputs, prefix_match_unit=16)) == plan_of(inputs)


def plan_of(inputs: PlanInputs):  # type: ignore[no-untyped-def]
    plan = decide(inputs).plan
    assert plan is not None
    return plan


def plan_under(answer: Agreement, inputs: PlanInputs):  # type: ignore[no-untyped-def]
    return plan_of(inputs_under(answer, inputs))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(
    first=planning_problems(device="cuda", prefix_caching=True),
    memory=st.integers(1 << 28, 1 << 36),
    size=st.sampled_from([1, 2, 4]),
    fleets_minimum=st.booleans(),
)
def test_every_pool_has_a_plan_under_what_was_agreed(
    first: PlanInputs, memory: int, size: int, fleets_minimum: bool
) -> None:
    second = replace(with_settings(first, tensor_parallel_size=size), kv_memory_bytes=memory)
    length = None if fleets_minimum else first.settings.max_model_len
    answer = agree(fleet_of({"a": first, "b": second}, max_model_len=length))
    assume(isinstance(answer, Agreement))
    assert isinstance(answer, Agreement)
    assert answer.max_model_len <= first.settings.max_model_len
    for name, inputs in (("a", first), ("b", second)):
        under = inputs_under(answer, inputs)
        plan = plan_of(under)
        assert plan.max_model_len == answer.max_model_len
        assert refused_unit(plan, answer.prefix_match_unit, name) is None
        assert all(group.block_size % answer.prefix_match_unit == 0 for group in plan.groups)


def test_a_generation_is_the_same_in_every_process_and_another_for_another_fleet() -> None:
    code = "from tests.fleets import fleet_of, problem\nprint(fleet_of({'a': problem(80), 'b': problem(6)}).generation)"
    prints = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True, text=True, check=True,
        ).stdout.strip()
        for seed in ("1", "2", "3")
    }  # fmt: skip
    mine = fleet_of({"a": problem(80), "b": problem(6)})
    assert prints == {mine.generation} and mine.digest() == mine.generation
    others = [
        fleet_of({"a": problem(80), "b": problem(7)}),
        fleet_of({"a": problem(80), "c": problem(6)}),
        fleet_of({"a": problem(80), "b": problem(6)}, max_model_len=None),
        fleet_of({"a": problem(80), "b": problem(6)}, guessed=("b",)),
    ]
    assert len({fleet.generation for fleet in [mine, *others]}) == 5


def test_a_fleet_needs_pools_with_names_of_their_own() -> None:
    with pytest.raises(ValueError, match=r"these are \[\]"):
        fleet_of({})


def test_an_agreement_travels_as_json() -> None:
    for fleet in (fleet_of(unlike(prefix_caching=True)), fleet_of(unlike())):
        answer = agreed(fleet)
        assert Agreement.from_json(json.loads(json.dumps(answer.to_json()))) == answer
    without = replace(answer, drafter_fingerprint=None)
    assert Agreement.from_json(without.to_json()) == without
    with pytest.raises(ValueError, match="expected the fields of"):
        Agreement.from_json({"generation": "x"})
