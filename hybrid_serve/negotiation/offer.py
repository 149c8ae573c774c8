"""What a replica offers and what it is answered: the values that cross the wire."""

from dataclasses import dataclass
from typing import Literal

from hybrid_serve.facts.model import Fingerprint
from hybrid_serve.plan.decide import Decision
from hybrid_serve.plan.inputs import PlanInputs
from hybrid_serve.plan.kv_plan import Policy

Source = Literal["planner", "local"]


@dataclass(frozen=True, kw_only=True)
class ReplicaOffer:
    """What one replica has: enough to plan for it without asking again.

    Attributes:
        replica_id: Ray Serve's unique id of the replica; a restarted replica has a new one.
        pool: replicas of one GPU kind.
        model_name: name clients use.
        drafter_fingerprint: None without a drafter.
    """

    replica_id: str
    pool: str
    model_name: str
    target_fingerprint: Fingerprint
    drafter_fingerprint: Fingerprint | None
    inputs: PlanInputs
    policy: Policy


@dataclass(frozen=True, kw_only=True)
class PlanAnswer:
    """A decision and where it was made.

    Attributes:
        source: `planner`, or `local` if the replica planned for itself.
        note: why it is local; empty otherwise.
    """

    decision: Decision
    source: Source
    note: str = ""
