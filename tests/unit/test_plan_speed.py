"""A plan is made while a replica waits for it."""

import statistics
import time
from dataclasses import replace

import pytest

from hybrid_serve.facts.capabilities import CAPABILITIES
from hybrid_serve.plan.best import best
from hybrid_serve.plan.decide import decide
from hybrid_serve.plan.inputs import PlanInputs
from hybrid_serve.plan.verdict import Impossible
from tests.cases import CASES, case_named, inputs_of, with_settings

SLACK = 4  # for slower and busier machines than the one where the limits were set
ONE_PLAN_SECONDS = 0.050
A_FLEET_SECONDS = 1.0
SEED = inputs_of(case_named("seed-measured-20g"), CAPABILITIES["0.29.0"])
KINDS = [
    replace(SEED, sm=sm, settings=replace(SEED.settings, tensor_parallel_size=size))
    for sm in (80, 89, 90, 100)
    for size in (1, 2)
]


def seconds_of_best(inputs: PlanInputs) -> float:
    """Processor seconds, median of three after one warm-up; max_num_seqs decides nothing, and makes inputs new."""
    spent = []
    for number in range(4):
        unseen = with_settings(inputs, max_num_seqs=1000 + number)
        started = time.process_time()
        best(unseen)
        spent.append(time.process_time() - started)
    return statistics.median(spent[1:])


@pytest.mark.parametrize("version", sorted(CAPABILITIES))
def test_best_takes_at_most_50_milliseconds_for_any_case(version: str) -> None:
    slowest = max((seconds_of_best(inputs_of(case, CAPABILITIES[version])), case["name"]) for case in CASES)
    assert slowest[0] < SLACK * ONE_PLAN_SECONDS, slowest


def test_a_thousand_replicas_of_eight_kinds_are_planned_within_a_second() -> None:
    fleet = [replace(KINDS[number % 8]) for number in range(1000)]
    started = time.process_time()
    decisions = [decide(inputs) for inputs in fleet]
    assert time.process_time() - started < SLACK * A_FLEET_SECONDS
    assert len({id(decision) for decision in decisions}) == 8


def test_so_are_a_thousand_that_each_measured_another_memory() -> None:
    fleet = [replace(KINDS[n % 8], kv_memory_bytes=SEED.kv_memory_bytes + n * 4096) for n in range(1000)]
    started = time.process_time()
    decisions = [decide(inputs) for inputs in fleet]
    assert time.process_time() - started < SLACK * A_FLEET_SECONDS
    for inputs, decision in zip(fleet, decisions, strict=True):
        assert decision.plan is not None and decision.plan.kv_memory_bytes == inputs.kv_memory_bytes


def test_a_remembered_search_gives_what_a_fresh_one_does() -> None:
    for memory in (5 << 30, 20 << 30, (20 << 30) + 12345):
        seen = best(replace(SEED, kv_memory_bytes=memory))
        unseen = best(with_settings(replace(SEED, kv_memory_bytes=memory), max_num_seqs=memory))
        assert not isinstance(seen, Impossible) and seen == unseen
        assert seen.plan.num_blocks == memory // seen.plan.block_bytes
