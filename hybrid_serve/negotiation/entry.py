"""One replica in the planner's book, and one that was refused: values, and their plain forms for tools."""

from dataclasses import dataclass
from typing import Any, Literal

from hybrid_serve.negotiation.offer import PlanAnswer, ReplicaOffer
from hybrid_serve.plan.kv_plan import EngineReport, KVPlan, differences

State = Literal["offered", "running", "mismatch", "local"]

Key = tuple[str, str]
"""(model name, generation): what agreements are made for."""


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
        incarnation: what the replica calls the last thing it told; empty if it has only asked.
        heard_at: when the replica last said anything, in the clock's seconds.
    """

    offer: ReplicaOffer
    answer: PlanAnswer
    report: EngineReport | None
    heard_at: float
    incarnation: str = ""

    @property
    def key(self) -> Key:
        return self.offer.model_name, self.offer.fleet.generation

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
        told, got = self.answer.inputs.settings.prefix_match_unit, self.report.prefix_match_unit
        unit = (f"prefix_match_unit: agreed {told}, got {got}",) if told is not None and told != got else ()
        return differences(self.plan, self.report) + unit

    @property
    def state(self) -> State:
        """`local` is a replica that runs something else than the planner would have it run now."""
        if self.differences:
            return "mismatch"
        if self.answer.source == "local":
            return "local"
        return "offered" if self.report is None else "running"

    def to_json(self) -> dict[str, Any]:
        """Plain values for tools; `differences` are sentences."""
        offer, agreement = self.offer, self.answer.agreement
        return {
            "replica_id": offer.replica_id,
            "pool": offer.pool,
            "model_name": offer.model_name,
            "generation": offer.fleet.generation,
            "target_fingerprint": str(offer.target_fingerprint),
            "drafter_fingerprint": None if offer.drafter_fingerprint is None else str(offer.drafter_fingerprint),
            "state": self.state,
            "source": self.answer.source,
            "note": self.answer.note,
            "max_model_len": None if agreement is None else agreement.max_model_len,
            "prefix_match_unit": self.answer.inputs.settings.prefix_match_unit,
            "plan_id": None if self.plan is None else self.plan.plan_id,
            "plan": None if self.plan is None else self.plan.to_json(),
            "predicted_kv_tokens": None if self.prediction is None else self.prediction.kv_tokens,
            "predicted_num_blocks": None if self.prediction is None else self.prediction.num_blocks,
            "stock_kv_tokens": self.answer.decision.stock_kv_tokens,
            "report": None if self.report is None else self.report.to_json(),
            "differences": list(self.differences),
        }


@dataclass(frozen=True, kw_only=True)
class Refused:
    """Replicas that were refused for one reason.

    Attributes:
        replica_id: of the last of them.
        times: how many were refused so.
        at: when the last was, in the clock's seconds.
    """

    replica_id: str
    pool: str
    model_name: str
    generation: str
    reason: str
    times: int
    at: float

    def to_json(self, now: float) -> dict[str, Any]:
        return {
            "replica_id": self.replica_id,
            "pool": self.pool,
            "model_name": self.model_name,
            "generation": self.generation,
            "reason": self.reason,
            "times": self.times,
            "seconds_ago": round(now - self.at, 1),
        }
