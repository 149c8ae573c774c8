"""The agreed prefix_match_unit in a real engine with prefix caching, which on a CPU it has without a drafter only."""

from math import gcd
from typing import Any

import pytest

from tests.contract.engine_process import run_engine, started

pytestmark = [pytest.mark.contract, pytest.mark.engines, pytest.mark.timeout(600)]

TASK: dict[str, Any] = {"drafter": False, "prefix_caching": True, "prompts": 4, "max_tokens": 24}


def test_an_engine_reports_the_unit_it_was_told_and_answers_the_same() -> None:
    unaided = started(**TASK)
    own = gcd(*(block_size for _, _, block_size, _ in unaided.answer["report"]["groups"]))
    assert unaided.answer["report"]["prefix_match_unit"] == own > 32
    told = started(**TASK, prefix_match_unit=32).answer
    assert told["report"] == unaided.answer["report"] | {"prefix_match_unit": 32}
    assert told["outputs"] == unaided.answer["outputs"]


def test_an_engine_does_not_start_on_a_unit_that_its_blocks_have_not() -> None:
    assert "error" in run_engine(**TASK, prefix_match_unit=7).answer
