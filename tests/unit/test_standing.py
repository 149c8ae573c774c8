"""Engines that stand together: each is asked by itself, and none is left, however one ends."""

import time
from pathlib import Path

import pytest

from benchmarks.standing import StandingEngine, standing
from hybrid_serve.engine.base import EngineStartError
from tests.standing_double import STATS

MODULE = "tests.standing_double"
STARTS_S = 60


def lines(*modes: str) -> dict[tuple[str, str], list[str]]:
    return {("case", mode): [mode] for mode in modes}


async def test_an_engine_is_asked_what_it_counts(tmp_path: Path) -> None:
    async with standing(MODULE, lines("serves"), STARTS_S, tmp_path) as engines:
        engine = engines["case", "serves"]
        assert engine.failed is None and engine.url == "http://127.0.0.1:9" and engine.vocabulary == 100
        assert await engine.stats() == STATS
    assert "Loading: 100%" in (tmp_path / "case-serves.log").read_text()


async def test_one_that_does_not_start_leaves_the_others_standing() -> None:
    async with standing(MODULE, lines("fails", "serves"), STARTS_S, None) as engines:
        assert "out of memory" in str(engines["case", "fails"].failed)
        assert await engines["case", "serves"].stats() == STATS


async def test_what_a_process_left_behind_is_ended_with_it() -> None:
    async with standing(MODULE, lines("leaves_a_child"), STARTS_S, None) as engines:
        gone: StandingEngine = engines["case", "leaves_a_child"]
        await gone.exited()
        began = time.monotonic()
    assert time.monotonic() - began < 20, "its child sleeps for 60 s and holds the output"


async def test_a_process_that_leaves_a_child_when_it_is_ended_is_not_waited_for() -> None:
    async with standing(MODULE, lines("leaves_a_child_at_the_end"), STARTS_S, None):
        began = time.monotonic()
    assert time.monotonic() - began < 20, "its child sleeps for 60 s and holds the output"


async def test_one_that_has_ended_says_so() -> None:
    async with standing(MODULE, lines("fails"), STARTS_S, None) as engines:
        gone = engines["case", "fails"]
        await gone.exited()
        with pytest.raises((EngineStartError, ConnectionError)):
            await gone.stats()


async def test_one_that_does_not_answer_in_time_has_not_started() -> None:
    async with standing(MODULE, lines("serves"), 0.001, None) as engines:
        assert "no answer within 0.001 s" in str(engines["case", "serves"].failed)
