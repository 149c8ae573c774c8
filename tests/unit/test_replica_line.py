"""The line that a replica prints when it is up."""

from dataclasses import replace
from pathlib import Path

from deployments.capacity_line import capacity_line
from hybrid_serve.engine.fake import report_as_planned
from hybrid_serve.plan.decide import Decision, decide
from hybrid_serve.plan.kv_plan import KVPlan
from hybrid_serve.plan.verdict import Fits, Impossible
from tests.demo_app import demo_offer


def example(folder: Path) -> tuple[Decision, KVPlan]:
    """A decision with round figures: 116,508 tokens against 69,905."""
    decision = decide(demo_offer(folder).inputs)
    assert decision.plan is not None
    groups = (replace(decision.plan.groups[0], blocks_per_request=1),) * 5
    base = replace(decision.plan, groups=groups, max_model_len=5)
    plan, stock = replace(base, num_blocks=116_508), replace(base, num_blocks=69_905)
    return Decision(policy="best", chosen=Fits(plan=plan), stock=Fits(plan=stock)), plan


def test_it_says_what_was_won_and_that_it_came_true(pair_folder: Path) -> None:
    decision, plan = example(pair_folder)
    assert capacity_line(decision, report_as_planned(plan), "0.29.0") == (
        "KV plan: 116,508 tokens in 1.0 GiB (stock vLLM 0.29.0: 69,905, +67 %), 5 groups, predicted = actual"
    )


def test_it_says_that_stock_does_not_start(pair_folder: Path) -> None:
    decision, plan = example(pair_folder)
    decision = replace(decision, stock=Impossible(reason="", remedy="", error="AssertionError"))
    assert "(stock vLLM 0.29.0: does not start)" in capacity_line(decision, report_as_planned(plan), "0.29.0")


def test_it_says_every_difference(pair_folder: Path) -> None:
    decision, plan = example(pair_folder)
    report = replace(report_as_planned(plan), num_blocks=7, kv_tokens=8)
    assert capacity_line(decision, report, "0.29.0").endswith(
        "predicted != actual: num_blocks: planned 116508, got 7; kv_tokens: planned 116508, got 8"
    )
