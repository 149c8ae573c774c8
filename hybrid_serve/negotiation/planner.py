"""The planner actor: one per cluster, detached, restarted by Ray if it dies."""

import logging
import time
from typing import Any

import ray
from ray.actor import ActorHandle

from hybrid_serve.negotiation.book import Book
from hybrid_serve.negotiation.metrics import PlannerMetrics
from hybrid_serve.negotiation.offer import PlanAnswer, ReplicaOffer
from hybrid_serve.plan.kv_plan import EngineReport

logger = logging.getLogger(__name__)

ACTOR_NAME = "hybrid_serve_planner"
NAMESPACE = "hybrid_serve"
# Ray gives the head node this resource; Ray Serve pins its controller the same way.
HEAD_NODE = {"node:__internal_head__": 0.001}


class Planner:
    """Plans for replicas that ask and remembers what they got.

    Planning is a pure function of the offer, so a restarted planner gives the same answers; what it
    remembered comes back with the replicas' next reports.
    """

    def __init__(self) -> None:
        self._book = Book(time.monotonic)
        self._metrics = PlannerMetrics()

    async def ping(self) -> str:
        return "pong"

    async def negotiate(self, offer: ReplicaOffer) -> PlanAnswer:
        """The plan for one replica."""
        answer = self._book.negotiate(offer)
        if answer.decision.plan is None:
            self._metrics.rejected(offer)
        return answer

    async def report(self, offer: ReplicaOffer, answer: PlanAnswer, report: EngineReport | None) -> None:
        """What a replica got. `report` is None while its engine is still starting."""
        entry = self._book.record(offer, answer, report)
        if entry.differences:
            logger.error("replica %s does not run its plan: %s", offer.replica_id, "; ".join(entry.differences))

    async def forget(self, replica_id: str) -> None:
        """The replica has stopped."""
        self._book.forget(replica_id)

    async def status(self) -> dict[str, Any]:
        """Everything the planner knows, as plain values."""
        self._book.check_integrity()
        return {"replicas": [entry.to_json() for entry in self._book.entries()]}


def planner_handle() -> ActorHandle[Any]:
    """The cluster's planner; created if there is none. Blocks on Ray's control store: call it off the event loop.

    Raises:
        Exception: whatever Ray raises if the cluster can't be reached.
    """
    return (
        ray.remote(Planner)
        .options(
            name=ACTOR_NAME,
            namespace=NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
            num_cpus=0,
            resources=HEAD_NODE,
            max_restarts=-1,
            max_task_retries=-1,
        )
        .remote()
    )
