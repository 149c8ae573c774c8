"""`stock()` against the table of what vLLM's own code answers, to the token."""

from typing import Any

import pytest

from hybrid_serve.facts.capabilities import CAPABILITIES, capabilities
from hybrid_serve.plan.kv_plan import KVPlan
from hybrid_serve.plan.stock import layer_specs, stock
from hybrid_serve.plan.verdict import Fits, Impossible
from tests.cases import CASES, case_named, inputs_of

VLLM_NAMES = {"mamba": "MambaSpec", "full": "FullAttentionSpec", "sliding": "SlidingWindowSpec"}
TABLE = [(case, version) for case in CASES for version in CAPABILITIES if version in case["expected"]]


def rows(plan: KVPlan) -> list[list[Any]]:
    """Groups as the table has them: equal ones in a row are one; a packed group's page is of all its layers."""
    found: list[list[Any]] = []
    for group in plan.groups:
        page = group.page_size_bytes if plan.pages == "uniform" else group.bytes_in_block
        row = [group.layers, VLLM_NAMES[group.kind], group.block_size, page]
        if found and found[-1][:4] == row:
            found[-1][4] += 1
        else:
            found.append([*row, 1])
    return found


@pytest.mark.parametrize(("case", "version"), TABLE, ids=[f"{c['name']}-{v}" for c, v in TABLE])
def test_stock_is_what_vllm_answers(case: dict[str, Any], version: str) -> None:
    expected = case["expected"][version]
    inputs = inputs_of(case, capabilities(version))
    verdict = stock(inputs)
    aligned = next(spec.block_size for spec in layer_specs(inputs) if getattr(spec.bucket, "kind", "") == "full")
    assert aligned == expected["block_size"]
    if expected["outcome"] != "ok":
        assert isinstance(verdict, Impossible)
        assert verdict.error == expected["outcome"]
        return
    assert isinstance(verdict, Fits)
    plan = verdict.plan
    assert rows(plan) == expected["groups"]
    assert plan.num_blocks == expected["num_blocks"]
    assert plan.kv_tokens == expected["kv_tokens"]
    assert round(plan.concurrency, 4) == expected["max_concurrency"]


def test_too_little_memory_names_the_largest_context_that_fits() -> None:
    inputs = inputs_of(case_named("35b-new-too-little-memory"), capabilities("0.29.0"))
    verdict = stock(inputs)
    assert isinstance(verdict, Impossible)
    assert verdict.max_model_len is not None and 0 < verdict.max_model_len < inputs.settings.max_model_len
    assert f"{verdict.max_model_len:,}" in verdict.remedy
    assert f"{inputs.kv_memory_bytes:,}" in verdict.reason


def test_an_unknown_version_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(ValueError, match=r"0\.1\.0 is not supported.*0\.29\.0"):
        capabilities("0.1.0")
