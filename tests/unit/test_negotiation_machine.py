"""Replicas that ask, report, die and come back in any order, and planners that are lost: the book stays consistent."""

from dataclasses import dataclass, replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from hybrid_serve.negotiation.agreement import Agreement
from hybrid_serve.negotiation.answers import agreement_with, answer_to
from hybrid_serve.negotiation.book import FORGET_OFFERED_AFTER_S, FORGET_RUNNING_AFTER_S, Book
from hybrid_serve.negotiation.offer import PlanAnswer, ReplicaOffer
from hybrid_serve.plan.kv_plan import EngineReport
from tests.fleets import DRAFTER, RETRAINED, Clock, fleet_of, offer_of, problem, report_of

LIMIT = 65536
FLEETS = (
    fleet_of({"big": problem(20), "small": problem(3)}, max_model_len=32768),
    fleet_of({"big": problem(20, max_model_len=LIMIT), "small": problem(1, max_model_len=LIMIT)}, max_model_len=None),
    fleet_of(
        {
            "big": problem(20, prefix_caching=True),
            "small": problem(6, prefix_caching=True, tensor_parallel_size=2),
        }
    ),
)
MEMORIES = (None, 0.1, 0.5, 0.8, 3, 30)
MAX_ENTRIES = 8


@dataclass
class Living:
    """A replica process: what it was answered, what its engine got, and what it last told under which name."""

    offer: ReplicaOffer
    answer: PlanAnswer
    report: EngineReport | None = None

    @property
    def incarnation(self) -> str:
        return "starting" if self.report is None else "started"


class Fleet(RuleBasedStateMachine):
    """Real books; replicas and the store are a few lines each."""

    replicas = Bundle("replicas")

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.kept: tuple[Agreement, ...] = ()
        self.book = Book(self.clock, MAX_ENTRIES)
        self.living: dict[str, Living] = {}
        self.number = 0

    def keep(self) -> None:
        self.kept = self.book.agreements()

    def offer(self, fleet: int, pool: str, memory: float | None, retrained: bool) -> ReplicaOffer:
        self.number += 1
        drafter = RETRAINED if retrained else DRAFTER
        return offer_of(FLEETS[fleet], pool, f"r{self.number}", gib=memory, drafter=drafter)

    @rule(
        target=replicas,
        fleet=st.integers(0, len(FLEETS) - 1),
        pool=st.sampled_from(["big", "small"]),
        memory=st.sampled_from(MEMORIES),
        retrained=st.sampled_from([False, False, False, True]),
        planner_is_down=st.sampled_from([False, False, True]),
    )
    def starts(self, fleet: int, pool: str, memory: float | None, retrained: bool, planner_is_down: bool) -> str:
        offer = self.offer(fleet, pool, memory, retrained)
        if planner_is_down:
            answer = answer_to(offer, agreement_with(offer), "local", "planner unreachable")
        else:
            answer = self.book.negotiate(offer)
            self.keep()
        assert bool(answer.refusal) == (answer.decision.plan is None)
        assert not retrained or str(RETRAINED) in answer.refusal
        if not answer.refusal:
            self.living[offer.replica_id] = Living(offer, answer)
        return offer.replica_id

    @rule(name=replicas)
    def asks_twice(self, name: str) -> None:
        if (replica := self.living.get(name)) is None or replica.report is not None:
            return
        answer = self.book.negotiate(replica.offer)
        self.keep()
        if answer.refusal:  # it had planned for itself, and the fleet agreed on more meanwhile
            del self.living[name]
        else:
            same = replace(answer, source=replica.answer.source, note=replica.answer.note) == replica.answer
            assert same or answer.agreement != replica.answer.agreement, "the same question, the same answer"
            replica.answer = answer

    @rule(name=replicas, as_planned=st.sampled_from([True, True, True, False]), heard=st.booleans())
    def engine_starts(self, name: str, as_planned: bool, heard: bool) -> None:
        if (replica := self.living.get(name)) is None or replica.report is not None:
            return
        report = report_of(replica.answer)
        replica.report = report if as_planned else replace(report, num_blocks=report.num_blocks - 1)
        if heard:
            self.reports(name)

    @rule(name=replicas)
    def reports(self, name: str) -> None:
        if (replica := self.living.get(name)) is None:
            return
        entry = self.book.record(replica.offer, replica.answer, replica.report, replica.incarnation)
        self.keep()
        assert entry.report == replica.report
        assert entry.answer.decision == replica.answer.decision, "no report changes what runs"

    @rule()
    def all_heartbeats(self) -> None:
        for name, replica in list(self.living.items()):
            if not self.book.heartbeat(name, replica.incarnation):
                self.reports(name)
        if len(self.living) <= MAX_ENTRIES:
            known = {entry.offer.replica_id: entry.report for entry in self.book.entries()}
            for name, replica in self.living.items():
                assert known[name] == replica.report, "a heartbeat heals what was lost on its way"

    @rule(name=replicas)
    def stops(self, name: str) -> None:
        self.living.pop(name, None)
        self.book.forget(name)

    @rule(name=replicas)
    def dies(self, name: str) -> None:
        self.living.pop(name, None)

    @rule(seconds=st.sampled_from([0.5, 5.0, FORGET_RUNNING_AFTER_S + 1, FORGET_OFFERED_AFTER_S + 1]))
    def time_passes(self, seconds: float) -> None:
        self.clock.now += seconds

    @rule(store_is_lost=st.sampled_from([False, False, False, True]))
    def planner_is_killed(self, store_is_lost: bool) -> None:
        before = self.book.agreements()
        self.book = Book(self.clock, MAX_ENTRIES, () if store_is_lost else self.kept)
        assert store_is_lost or set(before) <= set(self.book.agreements())

    @rule()
    def planner_is_killed_and_hears_from_all(self) -> None:
        running = {
            entry.offer.replica_id: entry
            for entry in self.book.entries()
            if entry.state == "running" and entry.offer.replica_id in self.living
        }
        self.keep()
        self.planner_is_killed(store_is_lost=False)
        self.all_heartbeats()
        for entry in self.book.entries():
            if (before := running.get(entry.offer.replica_id)) is not None:
                assert entry.state == "running" and entry.plan == before.plan, "the same plans, re-derived"

    @invariant()
    def the_book_is_consistent(self) -> None:
        self.book.check_integrity()

    @invariant()
    def what_the_planner_answered_agrees_across_pools(self) -> None:
        agreed: dict[tuple[str, str], set[tuple[int, int | None]]] = {}
        for entry in self.book.entries():
            if entry.answer.source == "planner":
                assert entry.answer.agreement is not None and entry.plan is not None
                values = (entry.plan.max_model_len, entry.answer.agreement.prefix_match_unit)
                agreed.setdefault(entry.key, set()).add(values)
                assert entry.offer.drafter_fingerprint == DRAFTER
        assert all(len(values) == 1 for values in agreed.values()), agreed


Fleet.TestCase.settings = settings(max_examples=1000, stateful_step_count=40, deadline=None)
TestFleet = Fleet.TestCase
