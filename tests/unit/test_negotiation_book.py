"""The planner's record, without Ray and with a clock of its own."""

from dataclasses import replace

import pytest

from hybrid_serve.negotiation.agreement import Agreement, FleetFacts, agree
from hybrid_serve.negotiation.answers import agreement_with, answer_to
from hybrid_serve.negotiation.book import (
    FORGET_OFFERED_AFTER_S,
    FORGET_RUNNING_AFTER_S,
    MAX_REFUSALS,
    MAX_UNUSED_AGREEMENTS,
    RELEASE_AGREEMENT_AFTER_S,
    Book,
)
from hybrid_serve.negotiation.offer import PlanAnswer, ReplicaOffer
from hybrid_serve.plan.decide import decide
from tests.fleets import DRAFTER, RETRAINED, Clock, fleet_of, offer_of, problem, report_of

LIMIT = 262144
FLEET = fleet_of({"big": problem(80), "small": problem(6)})
LOWEST = fleet_of(
    {"big": problem(80, max_model_len=LIMIT), "small": problem(2, max_model_len=LIMIT)}, max_model_len=None
)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def book(clock: Clock) -> Book:
    return Book(clock)


@pytest.fixture
def offer() -> ReplicaOffer:
    return offer_of(FLEET, "big")


def local(offer: ReplicaOffer) -> PlanAnswer:
    return answer_to(offer, agreement_with(offer), "local", "planner unreachable")


def agreed(book: Book) -> Agreement:
    (agreement,) = book.agreements()
    return agreement


def test_an_offer_is_answered_under_what_the_fleet_agreed_on(book: Book, offer: ReplicaOffer) -> None:
    answer = book.negotiate(offer)
    assert answer == answer_to(offer, agree(FLEET), "planner")
    assert answer.decision == decide(answer.inputs, "best") and answer.refusal == "" and answer.note == ""
    (entry,) = book.entries()
    assert entry.state == "offered"
    assert entry.prediction is not None and answer.decision.plan is not None
    assert entry.prediction.num_blocks == answer.decision.plan.num_blocks
    book.check_integrity()


def test_unlike_pools_get_unlike_plans_of_one_length(book: Book) -> None:
    big, small = (book.negotiate(offer_of(FLEET, pool, pool)).decision.plan for pool in ("big", "small"))
    assert big is not None and small is not None
    assert big.max_model_len == small.max_model_len == 32768
    assert big.num_blocks > small.num_blocks
    book.check_integrity()


def test_a_second_offer_of_a_replica_replaces_the_first(book: Book, offer: ReplicaOffer) -> None:
    first = book.negotiate(offer)
    book.record(offer, first, report_of(first))
    book.negotiate(replace(offer, inputs=problem(79)))
    (entry,) = book.entries()
    assert entry.offer.inputs == problem(79) and entry.report is None and entry.state == "offered"
    book.check_integrity()


def test_a_report_as_planned_is_running(book: Book, offer: ReplicaOffer) -> None:
    answer = book.negotiate(offer)
    entry = book.record(offer, answer, report_of(answer))
    assert entry.state == "running" and entry.differences == () and entry.answer.note == ""


def test_a_report_unlike_the_plan_is_a_mismatch_that_says_what_differs(book: Book, offer: ReplicaOffer) -> None:
    answer = book.negotiate(offer)
    entry = book.record(offer, answer, replace(report_of(answer), num_blocks=3))
    assert entry.state == "mismatch"
    assert len(entry.differences) == 1 and entry.differences[0].endswith("got 3")
    assert entry.to_json()["differences"] == list(entry.differences)


def test_an_engine_that_hashes_by_another_unit_is_a_mismatch(book: Book) -> None:
    fleet = fleet_of({"a": problem(80, prefix_caching=True)})
    offer = offer_of(fleet, "a")
    answer = book.negotiate(offer)
    entry = book.record(offer, answer, replace(report_of(answer), prefix_match_unit=7))
    assert entry.state == "mismatch"
    assert entry.differences == (f"prefix_match_unit: agreed {agreed(book).prefix_match_unit}, got 7",)


def test_a_retrained_drafter_is_refused_with_both_fingerprints_and_the_others_stay(
    book: Book, offer: ReplicaOffer
) -> None:
    book.negotiate(offer)
    answer = book.negotiate(offer_of(FLEET, "small", "r2", drafter=RETRAINED))
    assert str(RETRAINED) in answer.refusal and str(DRAFTER) in answer.refusal and "pool small" in answer.refusal
    assert answer.decision.plan is None
    assert [entry.offer.replica_id for entry in book.entries()] == ["r1"]
    (refused,) = book.refused()
    assert (refused.replica_id, refused.pool, refused.reason) == ("r2", "small", answer.refusal)
    book.check_integrity()


def test_a_retrained_drafter_is_refused_even_if_it_asks_first(book: Book) -> None:
    assert book.negotiate(offer_of(FLEET, "small", drafter=RETRAINED)).refusal
    assert book.agreements() == ()
    assert book.negotiate(offer_of(FLEET, "big")).refusal == ""


def test_a_replica_of_an_undeclared_pool_or_with_another_policy_is_refused(book: Book, offer: ReplicaOffer) -> None:
    assert "declares the pools big, small" in book.negotiate(replace(offer, pool="other")).refusal
    assert "by policy stock" in book.negotiate(replace(offer, policy="stock")).refusal
    book.check_integrity()


def test_a_fleet_that_is_not_its_digest_is_refused(book: Book, offer: ReplicaOffer) -> None:
    forged = replace(LOWEST, generation=FLEET.generation)
    assert "does not have the digest" in book.negotiate(replace(offer, fleet=forged)).refusal
    assert book.negotiate(offer).refusal == ""
    assert "does not have the digest" in book.negotiate(replace(offer, fleet=forged)).refusal
    book.check_integrity()


def test_a_replica_that_measured_too_little_is_refused_with_its_numbers_and_no_other(book: Book) -> None:
    answer = book.negotiate(offer_of(FLEET, "small", "poor", gib=0.125))
    assert "32,768 tokens needs" in answer.refusal and f"there are {2**27:,}" in answer.refusal
    assert book.agreements() == (), "nothing is fixed by a refusal"
    assert book.negotiate(offer_of(FLEET, "small", "r2")).refusal == ""
    assert book.negotiate(offer_of(FLEET, "big", "r3")).refusal == ""
    again = book.negotiate(offer_of(FLEET, "small", "poor", gib=0.125)).refusal
    assert "under the fleet's max_model_len of 32,768" in again and f"there are {2**27:,}" in again
    book.check_integrity()


def test_the_fleets_minimum_is_fixed_by_the_first_that_is_answered(book: Book) -> None:
    declared = agree(LOWEST)
    assert isinstance(declared, Agreement)
    first = book.negotiate(offer_of(LOWEST, "small", "r1", gib=1.5))
    assert first.agreement is not None and first.agreement.max_model_len < declared.max_model_len
    second = book.negotiate(offer_of(LOWEST, "big", "r2"))
    assert second.agreement == first.agreement
    refused = book.negotiate(offer_of(LOWEST, "small", "r3", gib=1))
    assert f"max_model_len of {first.agreement.max_model_len:,}" in refused.refusal
    assert book.negotiate(offer_of(LOWEST, "small", "r4", gib=3)).agreement == first.agreement
    assert [entry.offer.replica_id for entry in book.entries()] == ["r1", "r2", "r4"]
    book.check_integrity()


def test_what_was_measured_before_anyone_was_answered_counts(book: Book) -> None:
    fleet = fleet_of(
        {"big": problem(80, max_model_len=LIMIT), "none": problem(0.01, max_model_len=LIMIT)}, max_model_len=None
    )
    assert "pool none" in book.negotiate(offer_of(fleet, "big", "r1", gib=1)).refusal
    answer = book.negotiate(offer_of(fleet, "none", "r2", gib=80))
    alone = agree(fleet.measured("none", problem(80)).measured("big", problem(1)))
    assert answer.agreement == alone and answer.refusal == ""
    assert book.negotiate(offer_of(fleet, "big", "r1", gib=1)).refusal == ""
    book.check_integrity()


def test_a_replica_that_was_never_seen_is_entered_by_its_report(book: Book, clock: Clock, offer: ReplicaOffer) -> None:
    answer = Book(clock).negotiate(offer)
    entry = book.record(offer, answer, report_of(answer), "i1")
    assert entry.state == "running" and entry.answer == answer
    assert agreed(book) == answer.agreement
    book.check_integrity()


def test_a_lost_book_takes_an_agreement_over_from_the_replicas_that_run_under_it(clock: Clock) -> None:
    lost, book = Book(clock), Book(clock)
    low = lost.negotiate(offer_of(LOWEST, "small", "r1", gib=1.5))
    big = lost.negotiate(offer_of(LOWEST, "big", "r2"))
    entry = book.record(offer_of(LOWEST, "big", "r2"), big, report_of(big))
    assert entry.state == "running" and agreed(book) == low.agreement
    assert book.record(offer_of(LOWEST, "small", "r1", gib=1.5), low, report_of(low)).answer == low
    book.check_integrity()


def test_a_book_made_with_what_was_kept_gives_the_same_answers(clock: Clock) -> None:
    lost = Book(clock)
    lost.negotiate(offer_of(LOWEST, "small", "r1", gib=1.5))
    second = offer_of(LOWEST, "big", "r2")
    assert Book(clock, agreements=lost.agreements()).negotiate(second) == lost.negotiate(second)


def test_a_local_plan_equal_to_the_planners_is_reconciled(book: Book, offer: ReplicaOffer) -> None:
    entry = book.record(offer, local(offer), report_of(local(offer)))
    assert entry.state == "running"
    assert entry.answer.note == "planned locally, reconciled: planner unreachable"
    assert agreed(book) == local(offer).agreement
    book.check_integrity()


def test_a_local_plan_under_another_agreement_runs_on_and_is_said(book: Book) -> None:
    book.negotiate(offer_of(LOWEST, "small", "r1", gib=1.5))
    alone = offer_of(LOWEST, "big", "r2")
    answer = local(alone)
    assert answer.agreement != agreed(book)
    entry = book.record(alone, answer, report_of(answer))
    assert entry.state == "local" and entry.answer.agreement == answer.agreement
    assert f"max_model_len {agreed(book).max_model_len:,}" in entry.answer.note
    assert entry.answer.note.endswith(": planner unreachable")
    book.check_integrity()


def test_a_replica_that_the_planner_would_refuse_runs_on_and_is_said(book: Book) -> None:
    offer = offer_of(FLEET, "small", "r2", drafter=RETRAINED)
    answer = replace(Book(Clock()).negotiate(offer_of(FLEET, "small", "r2")), source="local", note="planned alone")
    entry = book.record(offer, answer, report_of(answer))
    assert entry.state == "local" and str(RETRAINED) in entry.answer.note
    assert book.agreements() == ()
    book.check_integrity()


def test_repeating_a_report_changes_nothing_but_when_it_was_heard(
    book: Book, offer: ReplicaOffer, clock: Clock
) -> None:
    answer = book.negotiate(offer)
    first = book.record(offer, answer, report_of(answer), "i1")
    clock.now += 30
    second = book.record(offer, answer, report_of(answer), "i1")
    assert replace(second, heard_at=first.heard_at) == first
    assert len(book.entries()) == 1


def test_a_late_word_that_the_engine_is_starting_takes_no_report_back(book: Book, offer: ReplicaOffer) -> None:
    answer = book.negotiate(offer)
    book.record(offer, answer, report_of(answer))
    assert book.record(offer, answer, None).state == "running"


def test_a_heartbeat_is_enough_once_the_report_is_known_and_only_then(
    book: Book, offer: ReplicaOffer, clock: Clock
) -> None:
    assert not book.heartbeat("r1", "i1")
    answer = book.negotiate(offer)
    assert not book.heartbeat("r1", "i1"), "it has only asked"
    book.record(offer, answer, report_of(answer), "i1")
    assert book.heartbeat("r1", "i1")
    assert not book.heartbeat("r1", "i2")
    for _ in range(20):
        clock.now += FORGET_RUNNING_AFTER_S / 2
        assert book.heartbeat("r1", "i1")
    assert [entry.state for entry in book.entries()] == ["running"]


def test_a_silent_running_replica_is_forgotten(book: Book, offer: ReplicaOffer, clock: Clock) -> None:
    answer = book.negotiate(offer)
    book.record(offer, answer, report_of(answer))
    clock.now += FORGET_RUNNING_AFTER_S
    assert len(book.entries()) == 1
    clock.now += 1
    assert book.entries() == () and book.forgotten().silent == 1


def test_a_replica_that_died_between_asking_and_reporting_is_forgotten_later(
    book: Book, offer: ReplicaOffer, clock: Clock
) -> None:
    book.negotiate(offer)
    clock.now += FORGET_OFFERED_AFTER_S
    assert len(book.entries()) == 1
    clock.now += 1
    assert book.entries() == ()
    book.check_integrity()


def test_an_agreement_outlives_its_replicas_for_a_while(book: Book, clock: Clock) -> None:
    first = book.negotiate(offer_of(LOWEST, "small", "r1", gib=1.5))
    book.forget("r1")
    clock.now += RELEASE_AGREEMENT_AFTER_S
    assert book.negotiate(offer_of(LOWEST, "big", "r2")).agreement == first.agreement
    book.forget("r2")
    clock.now += RELEASE_AGREEMENT_AFTER_S + 1
    assert book.entries() == () and book.agreements() == ()
    assert book.negotiate(offer_of(LOWEST, "big", "r3")).agreement == agree(LOWEST)
    book.check_integrity()


def test_beyond_the_limit_the_longest_silent_goes_first_and_is_counted(clock: Clock) -> None:
    book = Book(clock, max_entries=3)
    for index in range(5):
        clock.now += 1
        book.negotiate(offer_of(FLEET, "big", f"r{index}"))
        book.check_integrity()
    assert [entry.offer.replica_id for entry in book.entries()] == ["r2", "r3", "r4"]
    assert book.forgotten().for_space == 2


def test_refusals_are_bounded_and_equal_ones_are_one(book: Book) -> None:
    for index in range(3 * MAX_REFUSALS):
        book.negotiate(replace(offer_of(FLEET, "big"), pool=f"other{index % (2 * MAX_REFUSALS)}"))
        book.check_integrity()
    assert len(book.refused()) == MAX_REFUSALS
    for _ in range(5):
        book.negotiate(offer_of(FLEET, "small", "r2", drafter=RETRAINED))
    assert book.refused()[-1].times == 5 and len(book.refused()) == MAX_REFUSALS


def test_unused_agreements_are_bounded_and_those_in_use_stay(book: Book, clock: Clock) -> None:
    kept = offer_of(FLEET, "big", "kept")
    book.negotiate(kept)
    for index in range(MAX_UNUSED_AGREEMENTS + 20):
        clock.now += 0.01
        fleet = renamed(FLEET, f"model{index}")
        book.negotiate(offer_of(fleet, "big", "passing"))
    book.check_integrity()
    assert len(book.agreements()) <= MAX_UNUSED_AGREEMENTS + 2
    assert agree(FLEET) in book.agreements()


def renamed(fleet: FleetFacts, name: str) -> FleetFacts:
    fleet = replace(fleet, model_name=name)
    return replace(fleet, generation=fleet.digest())


def test_forgetting_is_safe_for_an_unknown_replica(book: Book, offer: ReplicaOffer) -> None:
    book.negotiate(offer)
    book.forget("unknown")
    book.forget(offer.replica_id)
    assert book.entries() == ()


def corrupted(book: Book, offer: ReplicaOffer, **changes: object) -> Book:
    """A book whose one entry's answer was changed behind its back."""
    book.negotiate(offer)
    entry = book._entries[offer.replica_id]
    book._entries[offer.replica_id] = replace(entry, answer=replace(entry.answer, **changes))  # type: ignore[arg-type]
    return book


def test_integrity_tells_an_answer_that_would_not_be_given_now(book: Book, offer: ReplicaOffer) -> None:
    other = decide(problem(30), "best")
    with pytest.raises(AssertionError, match="r1 was answered otherwise"):
        corrupted(book, offer, decision=other).check_integrity()


def test_integrity_tells_other_inputs_than_agreed(book: Book, offer: ReplicaOffer) -> None:
    with pytest.raises(AssertionError, match="r1 was planned with other inputs"):
        corrupted(book, offer, inputs=problem(3)).check_integrity()


def test_integrity_tells_another_agreement(book: Book, offer: ReplicaOffer) -> None:
    agreement = agree(FLEET)
    assert isinstance(agreement, Agreement)
    with pytest.raises(AssertionError, match="r1 runs under"):
        corrupted(book, offer, agreement=replace(agreement, max_model_len=5)).check_integrity()


def test_integrity_tells_a_refused_replica_that_runs(book: Book, offer: ReplicaOffer) -> None:
    with pytest.raises(AssertionError, match="r1 runs without a plan"):
        corrupted(book, offer, refusal="no").check_integrity()


def test_integrity_tells_a_replica_that_is_filed_under_another_name(book: Book, offer: ReplicaOffer) -> None:
    book.negotiate(offer)
    book._entries["r2"] = book._entries["r1"]
    with pytest.raises(AssertionError, match="r1 filed under r2"):
        book.check_integrity()
