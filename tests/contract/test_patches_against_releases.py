"""The patch of each vLLM release in that release's own code: what a plan says is what the release makes of it."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hybrid_serve.facts.capabilities import CAPABILITIES, capabilities
from hybrid_serve.plan.best import ASK_FOR_A_PLAN, best
from hybrid_serve.plan.inputs import PlanInputs
from hybrid_serve.plan.kv_plan import KVPlan
from hybrid_serve.plan.stock import stock
from hybrid_serve.plan.verdict import Impossible, NeedsPatch
from tests.cases import CASES, case_named, inputs_of, with_settings
from tests.contract.wheels import answer, ask, problem
from tests.strategies import release_problems

pytestmark = [pytest.mark.contract, pytest.mark.timeout(1200)]

RELEASES = sorted(CAPABILITIES)
BEFORE_PADDING = "0.20.1"
CLASSES = {"mamba": "MambaSpec", "full": "FullAttentionSpec", "sliding": "SlidingWindowSpec"}
EXAMPLES = 120
every_release = pytest.mark.parametrize("release", RELEASES)


def planned(inputs: PlanInputs) -> KVPlan | None:
    verdict = best(inputs)
    return verdict.plan if isinstance(verdict, NeedsPatch) else None


def engine(release: str, inputs: PlanInputs, plan: KVPlan | None) -> dict[str, Any]:
    """A start of the release with our plugin, on a plan or without one."""
    return ask(release, {"question": "with_plan", "plan": plan.to_json() if plan else None} | problem(inputs))


def with_plans(release: str, cases: Iterable[dict[str, Any]]) -> list[tuple[str, PlanInputs, KVPlan]]:
    problems = [(case["name"], inputs_of(case, capabilities(release))) for case in cases]
    return [(name, inputs, plan) for name, inputs in problems if (plan := planned(inputs)) is not None]


def check(release: str, inputs: PlanInputs, plan: KVPlan, name: str) -> None:
    made = engine(release, inputs, plan)
    assert made["outcome"] == "ok", (name, made)
    rows = [[g.layers, CLASSES[g.kind], g.block_size, g.page_size_bytes] for g in plan.groups]
    assert made["groups"] == made["profiled"] == rows, name
    assert made["num_blocks"] == plan.num_blocks, name
    assert (made["kv_tokens"], made["max_concurrency"]) == (plan.kv_tokens, plan.concurrency), name
    layers = sum(bucket.count for side in (inputs.target, inputs.drafter) if side for bucket in side.buckets)
    assert len(made["names"]) == len(set(made["names"])) == layers, name
    if inputs.drafter is not None and inputs.method == "dflash":
        assert made["dropping"] == [i for i, group in enumerate(plan.groups) if group.owner == "drafter"], name
    if not inputs.capabilities.publishes_capacity:
        assert made["worker_capacity"] == [plan.kv_tokens, plan.concurrency], name


@every_release
def test_every_plan_of_the_table_is_what_the_release_makes_of_it(release: str) -> None:
    found = with_plans(release, CASES)
    assert len(found) >= 20
    for name, inputs, plan in found:
        check(release, inputs, plan, name)


@every_release
def test_plans_for_other_problems_are_what_the_release_makes_of_them(release: str) -> None:
    plans = []

    @given(st.data())
    @settings(
        deadline=None, max_examples=EXAMPLES, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
    )
    def plan_one(data: st.DataObject) -> None:
        inputs = data.draw(release_problems(release))
        plan = planned(inputs)
        if plan is not None:
            plans.append(plan)
            check(release, inputs, plan, "generated")

    plan_one()
    assert len(plans) >= EXAMPLES // 12


@every_release
def test_the_drafters_groups_are_marked_and_no_other(release: str) -> None:
    inputs = inputs_of(case_named("seed-measured-40g"), capabilities(release))
    plan = planned(inputs)
    assert plan is not None
    assert engine(release, inputs, plan)["marked"] == [group.owner == "drafter" for group in plan.groups]


@every_release
def test_without_a_plan_the_release_answers_as_without_the_plugin(release: str) -> None:
    for case in CASES:
        inputs = inputs_of(case, capabilities(release))
        theirs, ours = answer(release, inputs), engine(release, inputs, None)
        if ours["outcome"] == "PagesDoNotUnifyError":
            assert release == BEFORE_PADDING
            assert theirs["outcome"] == ours["cause"], case["name"]
            continue
        for figure in ("outcome", "groups", "num_blocks", "kv_tokens", "max_concurrency"):
            assert ours.get(figure) == theirs.get(figure), (case["name"], ours, theirs)


@every_release
def test_a_plan_for_another_k_is_refused_with_both_sides(release: str) -> None:
    inputs = inputs_of(case_named("seed-measured-40g"), capabilities(release))
    other = planned(with_settings(inputs, num_speculative_tokens=4))
    refused = engine(release, inputs, other)
    assert refused["outcome"] == "PlanMismatchError"
    assert "30 mamba layers of 2,211,840 bytes" in refused["message"]
    assert "30 mamba layers of 2,277,376 bytes" in refused["message"]


def test_stock_that_cannot_unify_pages_says_so_with_the_numbers_and_the_remedy() -> None:
    inputs = inputs_of(case_named("seed-measured-40g"), capabilities(BEFORE_PADDING))
    unaided = stock(inputs)
    assert isinstance(unaided, Impossible) and unaided.error == "AssertionError"
    said = engine(BEFORE_PADDING, inputs, None)
    assert (said["outcome"], said["cause"]) == ("PagesDoNotUnifyError", "AssertionError")
    message = said["message"]
    assert "the largest (4,587,520 bytes)" in message
    assert "6 FullAttentionSpec layers" in message and "blocks of 1,120 tokens" in message
    assert "30 MambaSpec layers (target.0, target.1, target.2 and 27 more)" in message
    assert "2,293,760 bytes" in message
    assert ASK_FOR_A_PLAN in message


def test_a_page_that_divides_nothing_is_said_with_its_numbers() -> None:
    inputs = inputs_of(case_named("27b-k7-262k"), capabilities(BEFORE_PADDING))
    target = replace(inputs.target.attention[0], kv_heads=3)
    odd = replace(inputs, target=replace(inputs.target, buckets=(inputs.target.mamba[0], target)))
    said = engine(BEFORE_PADDING, odd, None)
    assert (said["outcome"], said["cause"]) == ("PagesDoNotUnifyError", "NotImplementedError")
    assert "is no multiple of" in said["message"] and ASK_FOR_A_PLAN in said["message"]


def test_a_layout_that_a_worker_would_read_wrongly_is_noticed_here() -> None:
    """0.20.1 takes a padded attention page for a full one: two blocks' bytes then cross, and the test has to see it."""
    inputs = inputs_of(case_named("seed-measured-40g"), capabilities(BEFORE_PADDING))
    plan = planned(inputs)
    assert plan is not None
    padded = [
        replace(group, block_size=group.block_size // 2, content_bytes=group.content_bytes // 2)
        if group.owner == "drafter"
        else group
        for group in plan.groups
    ]
    made = engine(BEFORE_PADDING, inputs, replace(plan, groups=tuple(padded)))
    assert made["outcome"] == "AssertionError" and "two blocks share bytes" in made["message"]


def test_a_platform_with_a_builder_of_its_own_keeps_it_and_takes_no_plan() -> None:
    plan = planned(inputs_of(case_named("seed-measured-40g"), capabilities("0.33.0")))
    assert plan is not None
    found = ask("0.33.0", {"question": "vendors_builder", "plan": plan.to_json()})
    assert found["without"] == "vendor.Builder"
    assert "VendorPlatform has a KV cache config builder of its own (vendor.Builder)" in found["refused"]


@every_release
def test_a_dflash_drafter_is_fed_the_states_after_its_target_layers(release: str) -> None:
    question = {"question": "aux_layers", "dflash_config": {"target_layer_ids": [1, 4, 6]}, "more": {}}
    unaided = ask(release, question | {"corrected": False})["layers"]
    early = capabilities(release).dflash_reads_one_layer_early
    assert unaided == ([1, 4, 6] if early else [2, 5, 7])
    assert ask(release, question | {"corrected": True})["layers"] == [2, 5, 7]


@every_release
def test_ids_that_are_given_in_vllms_own_counting_stay(release: str) -> None:
    given_ids = {"eagle_aux_hidden_state_layer_ids": [2, 6]}
    question = {"question": "aux_layers", "dflash_config": {"target_layer_ids": [1, 4]}, "more": given_ids}
    assert ask(release, question | {"corrected": True})["layers"] == [2, 6]
