"""What a replica offers and what it is answered: the values that cross the wire."""

from dataclasses import dataclass
from typing import Literal

from hybrid_serve.facts.model import Fingerprint
from hybrid_serve.negotiation.agreement import Agreement, FleetFacts
from hybrid_serve.plan.decide import Decision
from hybrid_serve.plan.inputs import PlanInputs
from hybrid_serve.plan.kv_plan import Policy

Source = Literal["planner", "local"]


@dataclass(frozen=True, kw_only=True)
class ReplicaOffer:
    """What one replica has: enough to plan for it without asking again.

    Attributes:
        replica_id: Ray Serve's unique id of the replica; a restarted replica has a new one.
        pool: replicas of one GPU kind; the name of one of the fleet's.
        model_name: name clients use; the fleet's.
        target_fingerprint, drafter_fingerprint: of what this replica found on its own machine; no drafter: None.
        inputs: with the memory that it measured.
        fleet: what was declared when it was deployed.
    """

    replica_id: str
    pool: str
    model_name: str
    target_fingerprint: Fingerprint
    drafter_fingerprint: Fingerprint | None
    inputs: PlanInputs
    policy: Policy
    fleet: FleetFacts


@dataclass(frozen=True, kw_only=True)
class PlanAnswer:
    """A decision, what it was made under, and where.

    Attributes:
        agreement: what the fleet agreed on; None if it did not.
        inputs: what was planned with: the offer's under the agreement; the offer's own without one.
        decision: `Impossible` if the replica is refused.
        refusal: why this replica may not start, with numbers and a remedy; empty if it may.
        source: `planner`, or `local` if the replica planned for itself.
        note: why it is local; empty otherwise.
    """

    agreement: Agreement | None
    inputs: PlanInputs
    decision: Decision
    source: Source
    refusal: str = ""
    note: str = ""
