"""One process runs real engines one after the other, as a replica does that changes its generation."""

from functools import cache
from typing import Any

import pytest
from ray.serve._private.constants import DEFAULT_HEALTH_CHECK_TIMEOUT_S

from tests.contract.engine_process import EngineProcess, Run

pytestmark = [pytest.mark.contract, pytest.mark.engines, pytest.mark.timeout(600)]

PROMPTS = 8
TASKS = (
    {"tokens": 7, "prompts": PROMPTS},
    {"tokens": 5, "prompts": PROMPTS},
    {"tokens": 7, "give_up": True},
    {"tokens": 7, "plan_tokens": 3},
    {"tokens": 7, "prompts": PROMPTS},
)
"""There, a start that is given up, one that fails, and back again."""


@cache
def in_turn() -> list[Run]:
    """In a process that has not imported vLLM yet, as a replica that starts."""
    process = EngineProcess()
    try:
        return [process.run(**task) for task in TASKS]
    finally:
        process.kill()


def answers() -> list[dict[str, Any]]:
    return [run.answer for run in in_turn()]


def engines() -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    seven, five, _, _, again = answers()
    assert all("error" not in each for each in (seven, five, again)), (seven, five, again)
    return seven, five, again


def test_each_engine_gets_what_was_predicted_for_its_own_plan() -> None:
    seven, five, again = engines()
    for answer in engines():
        assert answer["differences"] == [] and answer["report"]["num_blocks"] == answer["plan"]["num_blocks"]
    assert seven["plan_id"] == again["plan_id"] != five["plan_id"]
    assert seven["report"] == again["report"]
    assert five["report"]["kv_tokens"] > seven["report"]["kv_tokens"], "a draft of 5 tokens needs fewer states"


def test_greedy_tokens_are_the_same_under_each() -> None:
    seven, five, again = engines()
    assert len(seven["outputs"]) == PROMPTS and min(map(len, seven["outputs"])) > 0
    assert seven["outputs"] == five["outputs"] == again["outputs"]


def test_totals_begin_again_with_each_engine() -> None:
    seven, five, again = (each["stats"] for each in engines())
    assert [len(each["accepted_per_position"]) for each in (seven, five, again)] == [7, 5, 7]
    assert seven["drafts"] == again["drafts"] and seven["accepted_per_position"] == again["accepted_per_position"]
    for each in (seven, five, again):
        assert each["finished_requests"] == each["ttft_count"] == each["tpot_count"] == PROMPTS
        assert 0 < each["tpot_sum_s"] < each["ttft_sum_s"] < 60


def test_nothing_is_left_of_an_engine_that_ended() -> None:
    assert [each["left"] for each in answers()] == [[]] * len(TASKS)


def test_a_start_that_is_given_up_ends_soon() -> None:
    given_up = answers()[2]
    print(f"given up after {given_up['seconds'] - given_up['took']:.2f} s, ended {given_up['took']:.2f} s later")
    assert given_up["cancelled"] and given_up["took"] < 5


def test_a_plan_for_another_k_ends_the_start_with_both_sides_and_does_not_keep_the_next_from_starting() -> None:
    assert "error" in answers()[3] and "error" not in answers()[4]
    assert "is for another engine" in in_turn()[3].log


def test_the_event_loop_goes_on_while_an_engine_starts() -> None:
    pauses = [each["longest_pause"] for each in answers()]
    print(f"pauses of {pauses} s")
    assert max(pauses) < DEFAULT_HEALTH_CHECK_TIMEOUT_S / 3, "Ray Serve asks for health meanwhile"
