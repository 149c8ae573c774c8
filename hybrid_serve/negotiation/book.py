"""The planner's record of offers, agreements, plans and reports. Pure and in memory: no Ray, the clock is handed in.

Planning is a pure function of the offer and of what the fleet agreed on, so a book that was lost fills itself: replicas
report again, and each report carries its offer and its answer. Only the agreements are worth keeping elsewhere
(`Book.agreements`), since who asked first is nowhere else.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from hybrid_serve.negotiation.agreement import Agreement, FleetFacts, Refusal, inputs_under, refused_unit
from hybrid_serve.negotiation.answers import agreement_with, answer_to, refused_offer
from hybrid_serve.negotiation.entry import Entry, Refused
from hybrid_serve.negotiation.offer import PlanAnswer, ReplicaOffer
from hybrid_serve.plan.decide import decide
from hybrid_serve.plan.inputs import PlanInputs
from hybrid_serve.plan.kv_plan import EngineReport

REPORT_PERIOD_S = 5.0
FORGET_RUNNING_AFTER_S = 12 * REPORT_PERIOD_S
FORGET_OFFERED_AFTER_S = 3600.0
RELEASE_AGREEMENT_AFTER_S = 3600.0
SWEEP_PERIOD_S = 1.0

MAX_ENTRIES = 4096
MAX_UNUSED_AGREEMENTS = 256
MAX_REFUSALS = 64


@dataclass
class Terms:
    """What is known of one generation.

    Attributes:
        fleet: as its replicas declare it; None if none has asked since the agreement was read from the store.
        agreement: fixed once a replica was answered under it; None before.
        measured: pool -> the least memory that a replica of it measured, until the agreement is fixed.
        used_at: when a replica last ran under it, in the clock's seconds.
    """

    used_at: float
    fleet: FleetFacts | None = None
    agreement: Agreement | None = None
    measured: dict[str, PlanInputs] = field(default_factory=dict)


class Forgotten(NamedTuple):
    """Entries that were dropped: because their replicas fell silent, and because the book was full."""

    silent: int
    for_space: int


class Book:
    """Entries by replica id, agreements by (model name, generation). Every method leaves it bounded:

    - an entry whose replica has reported is dropped `FORGET_RUNNING_AFTER_S` after it was last heard of,
    - one that has not (its engine is loading weights) after `FORGET_OFFERED_AFTER_S`,
    - beyond `max_entries` the one that was heard of longest ago goes first. Its replica serves on, under the same plan;
      at its next heartbeat it is entered again, in place of another. So beyond the limit nothing is planned otherwise,
      but no look at the book shows all replicas;
    - an agreement that no replica ran under for `RELEASE_AGREEMENT_AFTER_S` is dropped, and the oldest unused one
      beyond `MAX_UNUSED_AGREEMENTS`;
    - of refusals the last `MAX_REFUSALS` are kept, equal ones as one.
    """

    def __init__(
        self, clock: Callable[[], float], max_entries: int = MAX_ENTRIES, agreements: Iterable[Agreement] = ()
    ) -> None:
        self._clock = clock
        self._max_entries = max_entries
        self._entries: dict[str, Entry] = {}
        self._refused: dict[tuple[str, str, str, str], Refused] = {}
        self._terms = {(a.model_name, a.generation): Terms(used_at=clock(), agreement=a) for a in agreements}
        self._swept_at = clock()
        self._silent = self._for_space = 0

    def negotiate(self, offer: ReplicaOffer) -> PlanAnswer:
        """Plan for the offer and remember it. A second offer of the same replica replaces the first.

        The first answer of a generation fixes its agreement. A refused replica is remembered as such only.
        """
        offer = self._interned(offer)
        answer = answer_to(offer, self._agreed(offer), "planner")
        if answer.refusal:
            self.forget(offer.replica_id)
            self._remember_refusal(offer, answer)
            return answer
        assert answer.agreement is not None, "a replica is answered under an agreement"
        self._fix(offer, answer.agreement)
        self._put(Entry(offer=offer, answer=answer, report=None, heard_at=self._clock()))
        return answer

    def record(
        self, offer: ReplicaOffer, answer: PlanAnswer, report: EngineReport | None, incarnation: str = ""
    ) -> Entry:
        """Remember what a replica got; idempotent, and enough to enter a replica that was never seen.

        A replica's engine starts once, so no report (None) after one was late on its way and takes nothing back.
        What the replica runs is compared with what it would be answered now. If they are equal the answer counts as
        the planner's, wherever it was made; if not, the replica runs on as `local`, and the note says why.
        """
        offer = self._interned(offer)
        answer = self._reconciled(offer, answer)
        known = self._entries.get(offer.replica_id)
        if report is None and known is not None and known.offer == offer:
            report = known.report
        entry = Entry(offer=offer, answer=answer, report=report, heard_at=self._clock(), incarnation=incarnation)
        self._put(entry)
        return entry

    def heartbeat(self, replica_id: str, incarnation: str) -> bool:
        """The replica lives. False if the book does not have what it last told: then it must report in full."""
        known = self._entries.get(replica_id)
        if known is None or known.incarnation != incarnation:
            return False
        self._put(replace(known, heard_at=self._clock()))
        return True

    def forget(self, replica_id: str) -> None:
        """The replica has stopped. Forgetting an unknown one is safe."""
        if (entry := self._entries.pop(replica_id, None)) is not None:
            self._terms[entry.key].used_at = self._clock()

    def entries(self) -> tuple[Entry, ...]:
        """Live entries, in the order in which their replicas were first seen."""
        self._sweep()
        return tuple(self._entries.values())

    def refused(self) -> tuple[Refused, ...]:
        """The last refusals, oldest first."""
        return tuple(self._refused.values())

    def agreements(self) -> tuple[Agreement, ...]:
        """Those that are fixed: what to keep, and to make the next book with."""
        return tuple(terms.agreement for terms in self._terms.values() if terms.agreement is not None)

    def forgotten(self) -> Forgotten:
        """How many entries were dropped since the book began."""
        return Forgotten(self._silent, self._for_space)

    def check_integrity(self) -> None:
        """Raises AssertionError if the book contradicts itself: bounds, agreements, and every answer derived again."""
        assert len(self._entries) <= self._max_entries, f"{len(self._entries)} entries, limit {self._max_entries}"
        assert len(self._refused) <= MAX_REFUSALS, f"{len(self._refused)} refusals, limit {MAX_REFUSALS}"
        unused = set(self._terms) - {entry.key for entry in self._entries.values()}
        assert len(unused) <= MAX_UNUSED_AGREEMENTS, f"{len(unused)} unused agreements, limit {MAX_UNUSED_AGREEMENTS}"
        for key, terms in self._terms.items():
            if (agreed := terms.agreement) is not None:
                filed = (agreed.model_name, agreed.generation)
                assert filed == key, f"the agreement of {filed} is filed under {key}"
        for replica_id, entry in self._entries.items():
            assert replica_id == entry.offer.replica_id, f"{entry.offer.replica_id} filed under {replica_id}"
            assert entry.heard_at <= self._clock(), f"{replica_id} was heard of in the future"
            assert entry.plan is not None and not entry.answer.refusal, f"{replica_id} runs without a plan"
            assert entry.key in self._terms, f"{replica_id} runs under generation {entry.key}, which is unknown"
            if entry.answer.source == "planner":
                _check_answer(entry, self._terms[entry.key].agreement)
            else:
                assert entry.answer.note, f"{replica_id} runs a plan of its own, and nothing says why"

    def _interned(self, offer: ReplicaOffer) -> ReplicaOffer:
        """The offer with the fleet that the book has already: a thousand replicas declare the same one."""
        terms = self._terms.setdefault((offer.model_name, offer.fleet.generation), Terms(used_at=self._clock()))
        if terms.fleet is None and offer.fleet.digest() == offer.fleet.generation:
            terms.fleet = offer.fleet
        return replace(offer, fleet=terms.fleet) if offer.fleet == terms.fleet else offer

    def _agreed(self, offer: ReplicaOffer) -> Agreement | Refusal:
        """What holds for this offer: the fixed agreement, or the one that it would fix."""
        terms = self._terms[offer.model_name, offer.fleet.generation]
        if offer.fleet != terms.fleet:
            return Refusal(
                pool=offer.pool,
                reason=f"its fleet does not have the digest {offer.fleet.generation} that it declares",
                remedy="run one release of hybrid_serve in all pools",
            )
        if terms.agreement is not None:
            return terms.agreement
        if (refused := refused_offer(offer)) is not None:
            return refused
        fleet = offer.fleet
        for pool, inputs in terms.measured.items():
            fleet = fleet.measured(pool, inputs)
        agreed = agreement_with(replace(offer, fleet=fleet))
        if isinstance(agreed, Refusal) and agreed.pool != offer.pool and fleet.max_model_len is None:
            least = terms.measured.get(offer.pool, offer.inputs)
            terms.measured[offer.pool] = min(least, offer.inputs, key=lambda inputs: inputs.kv_memory_bytes)
        return agreed

    def _fix(self, offer: ReplicaOffer, agreement: Agreement) -> None:
        terms = self._terms[offer.model_name, offer.fleet.generation]
        terms.agreement, terms.used_at = agreement, self._clock()
        terms.measured.clear()

    def _reconciled(self, offer: ReplicaOffer, answer: PlanAnswer) -> PlanAnswer:
        """The answer as the planner's if it would give the same now, otherwise as the replica's own, with a note."""
        terms = self._terms[offer.model_name, offer.fleet.generation]
        told = answer.agreement
        if terms.agreement is None and answer.source == "planner" and told and told.is_of(offer.fleet):
            agreed: Agreement | Refusal = told  # by a planner that was lost with what it kept
        else:
            agreed = self._agreed(offer)
        own = answer_to(offer, agreed, "planner")
        same = (own.agreement, own.inputs, own.decision) == (answer.agreement, answer.inputs, answer.decision)
        if same and own.agreement is not None and not own.refusal:
            self._fix(offer, own.agreement)
            return replace(own, note=_noted("planned locally, reconciled", answer) if answer.source == "local" else "")
        return replace(answer, source="local", note=_noted(f"the planner would decide otherwise: {_why(own)}", answer))

    def _remember_refusal(self, offer: ReplicaOffer, answer: PlanAnswer) -> None:
        key = (offer.model_name, offer.fleet.generation, offer.pool, answer.refusal)
        before = self._refused.pop(key, None)
        self._refused[key] = Refused(
            replica_id=offer.replica_id,
            pool=offer.pool,
            model_name=offer.model_name,
            generation=offer.fleet.generation,
            reason=answer.refusal,
            times=1 + (before.times if before else 0),
            at=self._clock(),
        )
        while len(self._refused) > MAX_REFUSALS:
            del self._refused[next(iter(self._refused))]
        self._drop_unused()

    def _put(self, entry: Entry) -> None:
        self._entries[entry.offer.replica_id] = entry
        if self._clock() - self._swept_at >= SWEEP_PERIOD_S:
            self._sweep()
        while len(self._entries) > self._max_entries:
            oldest = min(self._entries.values(), key=lambda e: e.heard_at)
            self.forget(oldest.offer.replica_id)
            self._for_space += 1
        self._drop_unused()

    def _sweep(self) -> None:
        now = self._swept_at = self._clock()
        for replica_id, entry in list(self._entries.items()):
            limit = FORGET_OFFERED_AFTER_S if entry.report is None else FORGET_RUNNING_AFTER_S
            if now - entry.heard_at > limit:
                self.forget(replica_id)
                self._silent += 1
        used = {entry.key for entry in self._entries.values()}
        for key, terms in list(self._terms.items()):
            if key not in used and now - terms.used_at > RELEASE_AGREEMENT_AFTER_S:
                del self._terms[key]

    def _drop_unused(self) -> None:
        if len(self._terms) <= MAX_UNUSED_AGREEMENTS:
            return
        unused = set(self._terms) - {entry.key for entry in self._entries.values()}
        oldest = sorted(unused, key=lambda key: self._terms[key].used_at)
        for key in oldest[: max(0, len(unused) - MAX_UNUSED_AGREEMENTS)]:
            del self._terms[key]


def _check_answer(entry: Entry, agreement: Agreement | None) -> None:
    """A planner's answer is what the agreement and the offer give, and the agreement is one that the offer allows."""
    offer, answer, who = entry.offer, entry.answer, entry.offer.replica_id
    assert agreement is not None, f"{who} was answered, and its fleet has no agreement"
    assert answer.agreement == agreement, f"{who} runs under {answer.agreement}, its fleet under {agreement}"
    prints = (agreement.target_fingerprint, agreement.drafter_fingerprint)
    assert (offer.target_fingerprint, offer.drafter_fingerprint) == prints, f"{who} has other weights than its fleet"
    configured = offer.fleet.max_model_len
    assert configured in (None, agreement.max_model_len), f"{who} was configured with max_model_len {configured}"
    assert answer.inputs == inputs_under(agreement, offer.inputs), f"{who} was planned with other inputs than agreed"
    assert answer.decision == decide(answer.inputs, offer.policy), f"{who} was answered otherwise than it would be now"
    plan = entry.plan
    assert plan is not None and plan.max_model_len == agreement.max_model_len, f"{who} advertises another max_model_len"
    unit = answer.inputs.settings.prefix_match_unit
    assert refused_unit(plan, unit, offer.pool) is None, f"{who} can't hash prefixes every {unit} tokens"


def _noted(what: str, answer: PlanAnswer) -> str:
    return f"{what}: {answer.note}" if answer.note else what


def _why(own: PlanAnswer) -> str:
    if own.refusal:
        return own.refusal
    assert own.agreement is not None, "what is not refused has an agreement"
    plan = own.decision.plan
    return (
        f"plan {plan.plan_id if plan else None} with max_model_len {own.agreement.max_model_len:,} and "
        f"prefix_match_unit {own.agreement.prefix_match_unit}"
    )
