"""`stock()` against each vLLM release's own planning code: the table of cases, and problems nobody has posed yet."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hybrid_serve.facts.capabilities import CAPABILITIES, capabilities
from hybrid_serve.plan.inputs import PlanInputs
from hybrid_serve.plan.kv_plan import KVPlan
from hybrid_serve.plan.specs import layer_specs
from hybrid_serve.plan.stock import stock
from hybrid_serve.plan.verdict import Impossible
from tests.cases import CASES, inputs_of
from tests.contract.wheels import answer
from tests.strategies import release_problems

pytestmark = [pytest.mark.contract, pytest.mark.timeout(1200)]

RELEASES = sorted(CAPABILITIES)
CLASSES = {"mamba": "MambaSpec", "full": "FullAttentionSpec", "sliding": "SlidingWindowSpec"}
EXAMPLES = 300


def predicted(inputs: PlanInputs) -> dict[str, Any]:
    """Our answer in the table's words."""
    verdict = stock(inputs)
    if isinstance(verdict, Impossible):
        figures = {} if verdict.computed is None or verdict.error == "ValueError" else figures_of(verdict.computed)
        return {"outcome": verdict.error} | figures
    return {"outcome": "ok"} | figures_of(verdict.plan)


def figures_of(plan: KVPlan) -> dict[str, Any]:
    return {
        "groups": [
            [
                g.layers,
                CLASSES[g.kind],
                g.block_size,
                g.page_size_bytes if plan.pages == "uniform" else g.bytes_in_block,
            ]
            for g in plan.groups
        ],
        "num_blocks": plan.num_blocks,
        "kv_tokens": plan.kv_tokens,
        "max_concurrency": plan.concurrency,
    }


def aligned_block(inputs: PlanInputs) -> int:
    full = [s for s in layer_specs(inputs) if getattr(s.bucket, "kind", "") == "full" and s.bucket.owner == "target"]
    return full[0].block_size


@pytest.mark.parametrize("release", RELEASES)
def test_the_release_still_answers_what_the_table_says(release: str) -> None:
    for case in CASES:
        theirs = answer(release, inputs_of(case, capabilities(release)))
        expected = dict(case["expected"][release])
        if "max_concurrency" in expected:
            theirs["max_concurrency"] = round(theirs["max_concurrency"], 4)
        if "groups" in expected:
            expected["groups"] = [row[:4] for row in expected["groups"] for _ in range(row[4])]
        for figure in ("outcome", "block_size", "groups", "num_blocks", "kv_tokens", "max_concurrency"):
            if figure in expected:
                assert theirs.get(figure) == expected[figure], (case["name"], figure, theirs.get("message"))


@pytest.mark.parametrize("release", RELEASES)
def test_the_table_is_answered_as_the_release_answers_it(release: str) -> None:
    for case in CASES:
        inputs = inputs_of(case, capabilities(release))
        theirs = answer(release, inputs)
        compare(inputs, theirs, case["name"])


@pytest.mark.parametrize("release", RELEASES)
def test_other_problems_are_answered_as_the_release_answers_them(release: str) -> None:
    @given(st.data())
    @settings(
        deadline=None, max_examples=EXAMPLES, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
    )
    def ask(data: st.DataObject) -> None:
        inputs = data.draw(release_problems(release))
        compare(inputs, answer(release, inputs), "generated")

    ask()


def compare(inputs: PlanInputs, theirs: dict[str, Any], name: str) -> None:
    ours = predicted(inputs)
    message = theirs.pop("message", "")
    if "block_size" in theirs:
        assert aligned_block(inputs) == theirs.pop("block_size"), (name, message)
    assert ours == theirs, (name, message)
