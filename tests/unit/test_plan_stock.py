"""`stock()` against the table of what vLLM's own code answers, to the token."""

from dataclasses import replace
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
    if "block_size" in expected:
        aligned = next(spec.block_size for spec in layer_specs(inputs) if getattr(spec.bucket, "kind", "") == "full")
        assert aligned == expected["block_size"]
    if expected["outcome"] == "ok":
        assert isinstance(verdict, Fits)
        plan = verdict.plan
    else:
        assert isinstance(verdict, Impossible)
        assert verdict.error == expected["outcome"]
        if "groups" not in expected:
            return
        assert verdict.computed is not None
        plan = verdict.computed
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


@pytest.mark.parametrize("version", ["0.1.0", "0.20.0", "0.20.1rc1", "0.34.0", "1.0.0", "nightly"])
def test_a_version_outside_the_range_is_refused_with_the_range(version: str) -> None:
    with pytest.raises(ValueError, match=rf"{version} is not supported.*0\.20\.1 to 0\.33\.x.*0\.29\.0"):
        capabilities(version)


@pytest.mark.parametrize(
    ("version", "checked"),
    [("0.20.2", "0.20.1"), ("0.25.1", "0.20.1"), ("0.29.1", "0.29.0"), ("0.33.0rc2", "0.32.0"), ("0.33.4", "0.33.0")],
)
def test_a_version_in_between_gets_the_nearest_below_and_says_so(version: str, checked: str) -> None:
    found = capabilities(version)
    assert found == replace(CAPABILITIES[checked], version=version, checked_as=checked)
    assert found.note is not None and version in found.note and checked in found.note


def test_a_checked_version_has_no_note_and_its_build_does_not_matter() -> None:
    assert capabilities("0.29.0+cpu") == capabilities("0.29.0")
    assert all(engine.note is None for engine in CAPABILITIES.values())
