"""The agreed prefix_match_unit in a real engine with prefix caching, which on a CPU it has without a drafter only."""

from math import gcd
from typing import Any

import pytest

from tests.contract.engine_process import started

pytestmark = [pytest.mark.contract, pytest.mark.engines, pytest.mark.timeout(600)]


def test_an_engine_reports_the_unit_it_was_told_and_answers_the_same() -> None:
    task: dict[str, Any] = {"drafter": False, "prefix_caching": True, "prompts": 4, "max_tokens": 24}
    unaided = started(**task)
    own = gcd(*(block_size for _, _, block_size, _ in unaided.answer["report"]["groups"]))
    assert unaided.answer["report"]["prefix_match_unit"] == own > 32
    told = started(**task, prefix_match_unit=32).answer
    assert told["report"] == unaided.answer["report"] | {"prefix_match_unit": 32}
    assert told["outputs"] == unaided.answer["outputs"]
