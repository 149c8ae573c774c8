"""Workloads of several contexts, and where a request's bytes go."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings

from hybrid_serve.cli import main
from hybrid_serve.facts.capabilities import CAPABILITIES
from hybrid_serve.plan.best import best
from hybrid_serve.plan.capacity import request_bytes
from hybrid_serve.plan.inputs import PlanInputs, Workload
from hybrid_serve.plan.stock import stock
from hybrid_serve.plan.verdict import Fits, Impossible
from hybrid_serve.plan.workload import (
    by_layer_type,
    concurrency_at,
    mean_concurrency,
    mean_floor_bytes,
    mean_request_bytes,
)
from tests.cases import case_named, inputs_of
from tests.strategies import planning_problems
from tests.unit.facts_checkpoints import dflash, qwen3_5, write_checkpoint


def seed(*contexts: tuple[int, float]) -> PlanInputs:
    inputs = inputs_of(case_named("seed-measured-20g"), CAPABILITIES["0.29.0"])
    return replace(inputs, workload=Workload(contexts=contexts))


def test_a_mean_request_weighs_contexts_by_how_common_they_are() -> None:
    inputs = seed((2048, 3), (8192, 1))
    verdict = stock(inputs)
    assert isinstance(verdict, Fits)
    plan = verdict.plan
    expected = (3 * request_bytes(plan, inputs, 2048) + request_bytes(plan, inputs, 8192)) / 4
    assert mean_request_bytes(plan, inputs) == pytest.approx(expected, abs=1)
    between = sorted(concurrency_at(plan, inputs, tokens) for tokens in (2048, 8192))
    assert between[0] < mean_concurrency(plan, inputs) < between[1]


def test_in_stock_vllm_half_of_the_seeds_state_pages_is_padding() -> None:
    inputs = seed((8192, 1))
    verdict = stock(inputs)
    assert isinstance(verdict, Fits)
    parts = {(part.owner, part.kind): part for part in by_layer_type(verdict.plan, inputs)}
    mamba = parts["target", "mamba"]
    assert (mamba.layers, mamba.groups, mamba.held, mamba.padding) == (30, 30, 1_238_630_400, 623_738_880)
    assert mamba.padding == 30 * 9 * (4_587_520 - 2_277_376)
    assert all(part.padding == 0 for key, part in parts.items() if key != ("target", "mamba"))


@given(planning_problems())
@settings(max_examples=80, deadline=None)
def test_layer_types_add_up_to_the_request_and_padding_is_what_the_floor_does_without(inputs: PlanInputs) -> None:
    for verdict in (stock(inputs), best(inputs)):
        if isinstance(verdict, Impossible):
            continue
        parts = by_layer_type(verdict.plan, inputs)
        assert sum(part.held for part in parts) == pytest.approx(
            mean_request_bytes(verdict.plan, inputs), abs=len(parts)
        )
        assert all(0 <= part.padding <= part.held for part in parts)
        used = sum(part.held - part.padding for part in parts)
        assert used >= mean_floor_bytes(inputs) or inputs.device == "cpu"


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    target = write_checkpoint(tmp_path / "target", qwen3_5())
    drafter = write_checkpoint(tmp_path / "drafter", dflash())
    return ["plan", "--target", target, "--drafter", drafter, "--num-speculative-tokens", "8", "--kv-memory", "20GiB"]


def test_the_table_shows_bytes_by_layer_type_and_concurrency_by_context(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, "--max-model-len", "131072", "--context", "8192"]) == 0
    printed = capsys.readouterr().out
    for told in ("1,238,630,400", "623,738,880", "983,990,272", "2,048 tok", "8,192 tok", "131,072 tok", "4.34"):
        assert told in printed, told
    for owner, kind in (("target", "full"), ("target", "mamba"), ("drafter", "full"), ("drafter", "sliding")):
        assert any(line.split()[:2] == [owner, kind] for line in printed.splitlines())
    assert "Not in any vLLM release" in printed.replace("\n", " ")


def test_a_workload_changes_the_request_that_is_weighed(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    main([*command, "--workload", "2048:3,8192:1", "--json"])
    mixed = json.loads(capsys.readouterr().out)
    main([*command, "--context", "2048", "--json"])
    short = json.loads(capsys.readouterr().out)
    assert mixed["workload"] == [[2048, 0.75], [8192, 0.25]]
    assert short["floor_bytes"] < mixed["floor_bytes"]
    assert [at["context"] for at in mixed["concurrency_at"]] == [2048, 8192]
    assert mixed["with_replayssm"]["released"] is False
    assert mixed["with_replayssm"]["concurrency_of_workload"] > 1.5 * mixed["concurrency_of_workload"]


@pytest.mark.parametrize("workload", ["2048:x", "0:1", "2048:0", "a", "2048:1,,", "2048:nan"])
def test_a_workload_that_is_none_is_told_with_an_example(
    command: list[str], capsys: pytest.CaptureFixture[str], workload: str
) -> None:
    with pytest.raises(SystemExit):
        main([*command, "--workload", workload])
    assert "2048:3,8192:1" in capsys.readouterr().err


def test_a_workload_beyond_max_model_len_is_a_mistake(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command, "--workload", "2048:3,9000:1"]) == 2
    assert "9000" in capsys.readouterr().err
