"""The planner's record, without Ray and with a clock of its own."""

from dataclasses import replace
from pathlib import Path

import pytest

from hybrid_serve.engine.fake import report_as_planned
from hybrid_serve.negotiation.book import FORGET_OFFERED_AFTER_S, FORGET_RUNNING_AFTER_S, Book
from hybrid_serve.negotiation.offer import PlanAnswer, ReplicaOffer
from hybrid_serve.plan.decide import decide
from hybrid_serve.plan.kv_plan import EngineReport
from tests.demo_app import demo_offer


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def book(clock: Clock) -> Book:
    return Book(clock)


@pytest.fixture
def offer(pair_folder: Path) -> ReplicaOffer:
    return demo_offer(pair_folder)


def planned_report(answer: PlanAnswer) -> EngineReport:
    assert answer.decision.plan is not None
    return report_as_planned(answer.decision.plan)


def test_an_offer_is_answered_with_the_pure_decision(book: Book, offer: ReplicaOffer) -> None:
    answer = book.negotiate(offer)
    assert answer == PlanAnswer(decision=decide(offer.inputs, offer.policy), source="planner")
    (entry,) = book.entries()
    assert entry.state == "offered"
    assert entry.prediction is not None and answer.decision.plan is not None
    assert entry.prediction.num_blocks == answer.decision.plan.num_blocks


def test_a_second_offer_of_a_replica_replaces_the_first(book: Book, offer: ReplicaOffer) -> None:
    book.record(offer, book.negotiate(offer), planned_report(book.negotiate(offer)))
    book.negotiate(replace(offer, policy="stock"))
    (entry,) = book.entries()
    assert entry.offer.policy == "stock" and entry.report is None and entry.state == "offered"
    book.check_integrity()


def test_a_report_as_planned_is_running(book: Book, offer: ReplicaOffer) -> None:
    answer = book.negotiate(offer)
    entry = book.record(offer, answer, planned_report(answer))
    assert entry.state == "running" and entry.differences == ()


def test_a_report_unlike_the_plan_is_a_mismatch_that_says_what_differs(book: Book, offer: ReplicaOffer) -> None:
    answer = book.negotiate(offer)
    entry = book.record(offer, answer, replace(planned_report(answer), num_blocks=3))
    assert entry.state == "mismatch"
    assert len(entry.differences) == 1 and entry.differences[0].endswith("got 3")
    assert entry.to_json()["differences"] == list(entry.differences)


def test_a_replica_that_was_never_seen_is_entered_by_its_report(book: Book, offer: ReplicaOffer) -> None:
    answer = PlanAnswer(decision=decide(offer.inputs, offer.policy), source="planner")
    assert book.record(offer, answer, planned_report(answer)).state == "running"


def test_a_local_plan_equal_to_the_planners_is_reconciled(book: Book, offer: ReplicaOffer) -> None:
    local = PlanAnswer(decision=decide(offer.inputs, offer.policy), source="local", note="planner unreachable")
    entry = book.record(offer, local, planned_report(local))
    assert entry.state == "running"
    assert "planned locally" in entry.answer.note and "planner unreachable" in entry.answer.note


def test_a_local_plan_unlike_the_planners_stays_local_and_is_said(book: Book, offer: ReplicaOffer) -> None:
    other = PlanAnswer(decision=decide(offer.inputs, "stock"), source="local", note="planner unreachable")
    entry = book.record(offer, other, planned_report(other))
    assert entry.state == "local"
    assert "decide otherwise" in entry.answer.note


def test_repeating_a_report_changes_nothing_but_when_it_was_heard(
    book: Book, offer: ReplicaOffer, clock: Clock
) -> None:
    answer = book.negotiate(offer)
    first = book.record(offer, answer, planned_report(answer))
    clock.now += 30
    second = book.record(offer, answer, planned_report(answer))
    assert replace(second, heard_at=first.heard_at) == first
    assert len(book.entries()) == 1


def test_a_late_word_that_the_engine_is_starting_takes_no_report_back(book: Book, offer: ReplicaOffer) -> None:
    answer = book.negotiate(offer)
    book.record(offer, answer, planned_report(answer))
    assert book.record(offer, answer, None).state == "running"


def test_a_silent_running_replica_is_forgotten(book: Book, offer: ReplicaOffer, clock: Clock) -> None:
    answer = book.negotiate(offer)
    book.record(offer, answer, planned_report(answer))
    clock.now += FORGET_RUNNING_AFTER_S
    assert len(book.entries()) == 1
    clock.now += 1
    assert book.entries() == ()


def test_a_replica_that_loads_weights_is_remembered_longer(book: Book, offer: ReplicaOffer, clock: Clock) -> None:
    book.negotiate(offer)
    clock.now += FORGET_OFFERED_AFTER_S
    assert len(book.entries()) == 1
    clock.now += 1
    assert book.entries() == ()


def test_beyond_the_limit_the_longest_silent_goes_first(offer: ReplicaOffer, clock: Clock) -> None:
    book = Book(clock, max_entries=3)
    for index in range(5):
        clock.now += 1
        book.negotiate(replace(offer, replica_id=f"r{index}"))
        book.check_integrity()
    assert [entry.offer.replica_id for entry in book.entries()] == ["r2", "r3", "r4"]


def test_forgetting_is_safe_for_an_unknown_replica(book: Book, offer: ReplicaOffer) -> None:
    book.negotiate(offer)
    book.forget("unknown")
    book.forget(offer.replica_id)
    assert book.entries() == ()


def test_an_impossible_offer_is_remembered_with_its_reason(book: Book, pair_folder: Path) -> None:
    answer = book.negotiate(demo_offer(pair_folder, kv_memory="1MiB"))
    assert answer.decision.plan is None
    entry = book.entries()[0].to_json()
    assert entry["plan"] is None and "2,048 tokens" in entry["impossible"]


def test_integrity_tells_a_report_without_a_plan(book: Book, pair_folder: Path, offer: ReplicaOffer) -> None:
    report = planned_report(book.negotiate(offer))
    impossible = demo_offer(pair_folder, "r2", kv_memory="1MiB")
    book.record(impossible, book.negotiate(impossible), report)
    with pytest.raises(AssertionError, match="r2 runs without a plan"):
        book.check_integrity()
