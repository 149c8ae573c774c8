"""Each gate fails for its own reason, and says so with both figures and the limit."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybrid_serve.rollout.gates import Evidence, Gate, Verdict, added, judge, judge_start, since
from hybrid_serve.rollout.wire import Figures, Gates

NOTHING = Figures()
USUAL = Figures(
    requests=100,
    errors=0,
    ttft_count=100,
    ttft_sum_s=10.0,
    tpot_count=100,
    tpot_sum_s=2.0,
    drafts=1000,
    accepted_per_position=(800, 600, 400, 300, 200, 100, 50),
)
EVIDENCE = Evidence(pool="a", old_k=7, new_k=5, new=USUAL, new_span=USUAL, old_span=USUAL, before=NOTHING)
GATES = Gates()


def new(figures: Figures, **more: object) -> Evidence:
    return replace(EVIDENCE, new=figures, new_span=figures, **more)  # type: ignore[arg-type]


def verdict(evidence: Evidence, gate: Gate, gates: Gates = GATES) -> Verdict:
    (found,) = (each for each in judge(evidence, gates) if each.gate == gate)
    return found


def failed(evidence: Evidence) -> list[str]:
    return [each.gate for each in judge(evidence, GATES) if each.state == "failed"]


def test_a_generation_that_does_the_same_passes_every_gate() -> None:
    assert [each.state for each in judge(EVIDENCE, GATES)] == ["passed"] * 7


@pytest.mark.parametrize(
    "evidence, gate, text",
    [
        (
            new(USUAL, not_started=("replica r1 did not start: no drafter", "replica r2 too")),
            "replica start",
            "pool a: replica start: replica r1 did not start: no drafter (and 1 more)",
        ),
        (
            new(USUAL, differences=("replica r1: num_blocks: planned 10, got 9",)),
            "predicted = actual",
            "pool a: predicted = actual: replica r1: num_blocks: planned 10, got 9",
        ),
        (
            new(USUAL, deaths=("replica r1 on generation 2: killed",)),
            "engine deaths",
            "pool a: engine deaths: replica r1 on generation 2: killed",
        ),
        (
            new(replace(USUAL, errors=4), old_span=replace(USUAL, errors=1)),
            "error rate",
            "pool a: error rate: 3.85% (4 of 104) on the new generation, 0.99% on the old one; the limit is at most "
            "1.99%",
        ),
        (
            new(replace(USUAL, ttft_sum_s=20.5)),
            "TTFT",
            "pool a: TTFT: 0.2050 s on the new generation, 0.1000 s on the old one (2.05 times); the limit is at most "
            "2 times, 0.2000 s",
        ),
        (
            new(replace(USUAL, tpot_sum_s=3.1)),
            "time per output token",
            "pool a: time per output token: 0.0310 s on the new generation, 0.0200 s on the old one (1.55 times); the "
            "limit is at most 1.5 times, 0.0300 s",
        ),
        (
            new(replace(USUAL, accepted_per_position=(700, 500, 300, 300, 200))),
            "acceptance",
            "pool a: acceptance: 2.00 tokens per draft on the new generation, 2.30 on the old one, over the first 5 "
            "positions (0.87 times); the limit is at least 0.9 times, 2.07",
        ),
    ],
)
def test_a_gate_fails_alone_with_its_figures(evidence: Evidence, gate: Gate, text: str) -> None:
    assert failed(evidence) == [gate]
    assert verdict(evidence, gate).text == text


@pytest.mark.parametrize("gate", ["error rate", "TTFT", "time per output token", "acceptance"])
def test_the_limit_itself_passes(gate: Gate) -> None:
    figures = {
        "error rate": replace(USUAL, requests=99, errors=1),
        "TTFT": replace(USUAL, ttft_sum_s=20.0),
        "time per output token": replace(USUAL, tpot_sum_s=3.0),
        "acceptance": replace(USUAL, accepted_per_position=(670, 500, 400, 300, 200)),
    }[gate]
    found = verdict(new(figures), gate)
    assert found.state == "passed" and None not in (found.old, found.new, found.limit)


def test_acceptance_is_compared_over_the_positions_that_both_have() -> None:
    of_five = replace(USUAL, accepted_per_position=(800, 600, 400, 300, 200))
    assert verdict(new(of_five), "acceptance").state == "passed"
    wider = replace(EVIDENCE, old_k=5, new_k=7, old_span=of_five)
    assert verdict(wider, "acceptance").new == pytest.approx(2.3)
    assert "no drafter" in verdict(replace(EVIDENCE, new_k=0), "acceptance").text


@pytest.mark.parametrize("gate", ["error rate", "TTFT", "time per output token", "acceptance"])
def test_too_few_requests_wait_and_are_not_judged_once_the_time_is_over(gate: Gate) -> None:
    few = Figures(requests=19, ttft_count=19, ttft_sum_s=99, tpot_count=19, tpot_sum_s=99, drafts=10)
    assert verdict(new(few), gate).state == "waiting"
    over = verdict(new(few, over=True), gate)
    assert over.state == "not judged" and "19 requests" in over.text.replace(" 0 ", " 19 ") and "20" in over.text


def test_an_old_generation_with_too_few_requests_is_what_the_switched_replicas_did_before() -> None:
    slower = replace(USUAL, ttft_sum_s=30.0)
    alone = new(slower, old_span=replace(USUAL, requests=1, ttft_count=1), before=USUAL)
    assert verdict(alone, "TTFT").state == "failed"
    assert verdict(replace(alone, before=NOTHING), "TTFT").state == "waiting"


def test_outside_the_bake_latency_is_judged_only_over_the_same_span() -> None:
    slower = replace(USUAL, ttft_sum_s=30.0)
    assert verdict(new(slower, old_span=NOTHING, before=USUAL, baking=False), "TTFT").state == "not judged"
    assert verdict(new(slower, baking=False), "TTFT").state == "failed"
    worse = replace(USUAL, accepted_per_position=(1,))
    assert verdict(new(worse, old_span=NOTHING, before=USUAL, baking=False), "acceptance").state == "failed"


def test_early_figures_are_shown_and_not_judged() -> None:
    found = verdict(new(replace(USUAL, ttft_sum_s=30.0), early=True), "TTFT")
    assert found.state == "waiting" and (found.old, found.new) == (0.1, 0.3)


def test_an_engine_that_answers_nothing_but_errors_is_judged() -> None:
    assert failed(new(Figures(errors=20))) == ["error rate"]


def test_a_rollback_has_two_gates() -> None:
    assert [each.gate for each in judge_start(EVIDENCE)] == ["replica start", "predicted = actual"]


counts = st.integers(0, 50)
figures = st.builds(
    Figures,
    requests=counts,
    errors=counts,
    ttft_count=counts,
    tpot_count=counts,
    drafts=counts,
    accepted_per_position=st.lists(counts, max_size=4).map(tuple),
)


@given(figures, figures)
def test_what_was_added_is_the_difference(first: Figures, more: Figures) -> None:
    def filled(figures: Figures, length: int) -> tuple[int, ...]:
        return (figures.accepted_per_position + (0,) * 4)[:length]

    found = since(added([first, more]), first)
    assert (found.requests, found.errors, found.drafts) == (more.requests, more.errors, more.drafts)
    assert filled(found, 4) == filled(more, 4)


def test_totals_that_fell_are_those_of_another_engine() -> None:
    restarted = replace(USUAL, requests=5, ttft_count=5)
    assert since(restarted, USUAL) == restarted
    assert since(USUAL, None) == USUAL
