"""Choosing K: accepted tokens against requests that fit."""

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybrid_serve.cli import main
from hybrid_serve.facts.capabilities import CAPABILITIES
from hybrid_serve.plan.choose_k import best_k, check_acceptance, choose_k, from_conditional, tokens_per_step
from hybrid_serve.plan.inputs import PlanInputs, Workload
from tests.cases import case_named, inputs_of
from tests.unit.facts_checkpoints import dflash, qwen3_5, write_checkpoint

FALLING = tuple(0.85**position for position in range(1, 16))


def seed(memory: int = 20 << 30) -> PlanInputs:
    inputs = inputs_of(case_named("seed-measured-20g"), CAPABILITIES["0.29.0"])
    return replace(inputs, kv_memory_bytes=memory, workload=Workload(contexts=((8192, 1.0),)))


def test_at_k_8_and_8192_tokens_62_percent_of_a_seed_request_is_mamba_state() -> None:
    rows = {row.k: row for row in choose_k(seed(), acceptance=FALLING, block_size=16)}
    assert rows[8].floor_bytes == 983_990_272
    assert rows[8].state_share == pytest.approx(614_891_520 / 983_990_272)
    assert f"{rows[8].state_share:.0%}" == "62%"


def test_there_is_one_row_for_each_k_that_the_drafter_drafts_and_a_rate_is_given_for() -> None:
    assert [row.k for row in choose_k(seed(), acceptance=FALLING, block_size=16)] == list(range(1, 16))
    assert [row.k for row in choose_k(seed(), acceptance=FALLING, block_size=8)] == list(range(1, 8))
    assert [row.k for row in choose_k(seed(), acceptance=FALLING[:3], block_size=16)] == [1, 2, 3]


def test_a_longer_draft_yields_more_tokens_and_costs_more_memory() -> None:
    rows = choose_k(seed(), acceptance=FALLING, block_size=16)
    for shorter, longer in pairwise(rows):
        assert longer.tokens_per_step > shorter.tokens_per_step
        assert longer.floor_bytes > shorter.floor_bytes and longer.state_share > shorter.state_share


def test_the_best_k_has_the_highest_tokens_per_step_times_concurrency() -> None:
    rows = choose_k(seed(), acceptance=FALLING, block_size=16)
    chosen = best_k(rows)
    assert chosen is not None and chosen.concurrency is not None
    assert chosen.yield_per_step == pytest.approx(chosen.tokens_per_step * chosen.concurrency)
    assert all((row.yield_per_step or 0) <= (chosen.yield_per_step or 0) for row in rows)


def test_a_drafter_that_is_never_right_is_best_at_the_smallest_k() -> None:
    chosen = best_k(choose_k(seed(), acceptance=(0.0,) * 15, block_size=16))
    assert chosen is not None and chosen.k == 1


def test_where_nothing_fits_there_is_no_best_k() -> None:
    rows = choose_k(seed(1 << 28), acceptance=FALLING, block_size=16)
    assert best_k(rows) is None and all(row.request_bytes is None for row in rows)


def test_mean_accepted_length_counts_the_token_that_the_target_adds() -> None:
    assert tokens_per_step((0.8, 0.6, 0.4), 2) == pytest.approx(2.4)
    assert tokens_per_step((1.0,) * 7, 7) == 8


@given(st.lists(st.floats(0, 1), min_size=1, max_size=15))
def test_conditional_rates_become_per_position_rates_by_their_running_product(conditional: list[float]) -> None:
    rates = check_acceptance(from_conditional(conditional))
    assert rates[0] == conditional[0]
    assert all(later <= earlier for earlier, later in pairwise(rates))


@pytest.mark.parametrize(
    ("rates", "told"), [((), "no acceptance"), ((1.2,), "0 to 1"), ((0.5, 0.6), "rises"), ((float("nan"),), "0 to 1")]
)
def test_what_cannot_be_per_position_rates_is_refused(rates: tuple[float, ...], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        check_acceptance(rates)


def test_a_conditional_rate_above_1_is_refused_as_what_it_is() -> None:
    with pytest.raises(ValueError, match=r"position 2 is 1\.5"):
        from_conditional((0.5, 1.5))


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    target = write_checkpoint(tmp_path / "target", qwen3_5())
    drafter = write_checkpoint(tmp_path / "drafter", dflash())
    return ["plan", "--target", target, "--drafter", drafter, "--kv-memory", "20GiB"]


def test_plan_prints_one_row_a_k_and_marks_the_best(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command, "--acceptance", "0.8,0.6,0.4,0.3"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("<- highest") == 1 and "tokens per step x concurrency:" in printed
    assert main([*command, "--acceptance", "0.8,0.6,0.4,0.3", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)["choose_k"]
    assert [row["k"] for row in answer["rows"]] == [1, 2, 3, 4] and answer["best_k"] in (1, 2, 3, 4)


def test_conditional_and_per_position_rates_say_the_same(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    main([*command, "--acceptance", "0.5,0.25", "--json"])
    per_position = json.loads(capsys.readouterr().out)["choose_k"]
    main([*command, "--conditional-acceptance", "0.5,0.5", "--json"])
    assert json.loads(capsys.readouterr().out)["choose_k"] == per_position


@pytest.mark.parametrize("rates", ["0.5,0.6", "1.5"])
def test_wrong_rates_are_a_mistake_and_no_traceback(
    command: list[str], capsys: pytest.CaptureFixture[str], rates: str
) -> None:
    assert main([*command, "--acceptance", rates]) == 2
    assert "acceptance rate" in capsys.readouterr().err
