"""The planner's record of offers, plans and reports. Pure and in memory: no Ray, the clock is handed in.

Nothing here is needed to plan (planning is a pure function of the offer), so losing it loses no plan:
replicas report again every `REPORT_PERIOD_S` and the book fills itself.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

from hybrid_serve.negotiation.offer import PlanAnswer, ReplicaOffer
from hybrid_serve.plan.decide import decide
from hybrid_serve.plan.kv_plan import EngineReport, KVPlan, differences
from hybrid_serve.plan.verdict import Impossible

State = Literal["offered", "running", "mismatch", "local"]

REPORT_PERIOD_S = 30.0
FORGET_RUNNING_AFTER_S = 10 * REPORT_PERIOD_S
FORGET_OFFERED_AFTER_S = 3600.0
MAX_ENTRIES = 1024


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """What the plan says the engine will have."""

    kv_tokens: int
    num_blocks: int


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One replica.

    Attributes:
        report: what its engine got; None until it has started.
        heard_at: when the replica last said anything, in the clock's seconds.
    """

    offer: ReplicaOffer
    answer: PlanAnswer
    report: EngineReport | None
    heard_at: float

    @property
    def plan(self) -> KVPlan | None:
        """None if nothing starts on this replica."""
        return self.answer.decision.plan

    @property
    def prediction(self) -> Prediction | None:
        if self.plan is None:
            return None
        return Prediction(kv_tokens=self.plan.kv_tokens, num_blocks=self.plan.num_blocks)

    @property
    def differences(self) -> tuple[str, ...]:
        """Planned against actual; empty if they are equal, or if there is no report yet."""
        if self.plan is None or self.report is None:
            return ()
        return differences(self.plan, self.report)

    @property
    def state(self) -> State:
        """`local` is a replica that planned for itself and came to another plan than the planner would have."""
        if self.differences:
            return "mismatch"
        if self.answer.source == "local":
            return "local"
        return "offered" if self.report is None else "running"

    def to_json(self) -> dict[str, Any]:
        """Plain values for tools; `differences` are sentences."""
        chosen = self.answer.decision.chosen
        return {
            "replica_id": self.offer.replica_id,
            "pool": self.offer.pool,
            "model_name": self.offer.model_name,
            "target_fingerprint": str(self.offer.target_fingerprint),
            "drafter_fingerprint": None
            if self.offer.drafter_fingerprint is None
            else str(self.offer.drafter_fingerprint),
            "state": self.state,
            "source": self.answer.source,
            "note": self.answer.note,
            "impossible": chosen.reason if isinstance(chosen, Impossible) else None,
            "plan_id": None if self.plan is None else self.plan.plan_id,
            "plan": None if self.plan is None else self.plan.to_json(),
            "predicted_kv_tokens": None if self.prediction is None else self.prediction.kv_tokens,
            "predicted_num_blocks": None if self.prediction is None else self.prediction.num_blocks,
            "stock_kv_tokens": self.answer.decision.stock_kv_tokens,
            "report": None if self.report is None else self.report.to_json(),
            "differences": list(self.differences),
        }


class Book:
    """Entries by replica id. Every method leaves it bounded:

    - an entry whose replica has reported is dropped `FORGET_RUNNING_AFTER_S` after it was last heard of,
    - one that has not (its engine is loading weights) after `FORGET_OFFERED_AFTER_S`,
    - beyond `max_entries` the one that was heard of longest ago goes first.
    """

    def __init__(self, clock: Callable[[], float], max_entries: int = MAX_ENTRIES) -> None:
        self._clock = clock
        self._max_entries = max_entries
        self._entries: dict[str, Entry] = {}

    def negotiate(self, offer: ReplicaOffer) -> PlanAnswer:
        """Plan for the offer and remember it. A second offer of the same replica replaces the first."""
        answer = PlanAnswer(decision=decide(offer.inputs, offer.policy), source="planner")
        self._put(Entry(offer=offer, answer=answer, report=None, heard_at=self._clock()))
        return answer

    def record(self, offer: ReplicaOffer, answer: PlanAnswer, report: EngineReport | None) -> Entry:
        """Remember what a replica got; idempotent, and enough to enter a replica that was never seen.

        A replica's engine starts once, so no report (None) after one was late on its way and takes nothing back.
        A replica that planned for itself is reconciled: if its plan is the one that the planner makes for the
        same offer, it is from now on the planner's; if not, it stays `local` and the note says so.
        """
        if answer.source == "local":
            answer = self._reconciled(offer, answer)
        known = self._entries.get(offer.replica_id)
        if report is None and known is not None and known.offer == offer:
            report = known.report
        entry = Entry(offer=offer, answer=answer, report=report, heard_at=self._clock())
        self._put(entry)
        return entry

    def forget(self, replica_id: str) -> None:
        """The replica has stopped. Forgetting an unknown one is safe."""
        self._entries.pop(replica_id, None)

    def entries(self) -> tuple[Entry, ...]:
        """Live entries, in the order in which their replicas were first seen."""
        self._drop_stale()
        return tuple(self._entries.values())

    def check_integrity(self) -> None:
        """Raises AssertionError if the book contradicts itself."""
        assert len(self._entries) <= self._max_entries, f"{len(self._entries)} entries, limit {self._max_entries}"
        for replica_id, entry in self._entries.items():
            assert replica_id == entry.offer.replica_id, f"{entry.offer.replica_id} filed under {replica_id}"
            assert entry.heard_at <= self._clock(), f"{replica_id} was heard of in the future"
            assert entry.report is None or entry.plan is not None, f"{replica_id} runs without a plan"

    def _reconciled(self, offer: ReplicaOffer, answer: PlanAnswer) -> PlanAnswer:
        own = decide(offer.inputs, offer.policy)
        if own == answer.decision:
            return replace(answer, source="planner", note=f"planned locally, reconciled: {answer.note}")
        return replace(answer, note=f"{answer.note}; the planner would decide otherwise (unlike versions?)")

    def _put(self, entry: Entry) -> None:
        self._entries[entry.offer.replica_id] = entry
        self._drop_stale()
        while len(self._entries) > self._max_entries:
            oldest = min(self._entries.values(), key=lambda e: e.heard_at)
            del self._entries[oldest.offer.replica_id]

    def _drop_stale(self) -> None:
        now = self._clock()
        for replica_id, entry in list(self._entries.items()):
            limit = FORGET_OFFERED_AFTER_S if entry.report is None else FORGET_RUNNING_AFTER_S
            if now - entry.heard_at > limit:
                del self._entries[replica_id]
