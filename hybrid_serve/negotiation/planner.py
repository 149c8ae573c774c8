"""The planner actor: one per cluster, detached, restarted by Ray if it dies."""

import logging
import os
import time
from typing import Any

import ray
from ray.actor import ActorHandle

from hybrid_serve.negotiation.book import Book
from hybrid_serve.negotiation.kept import Kept
from hybrid_serve.negotiation.metrics import PlannerMetrics
from hybrid_serve.negotiation.offer import PlanAnswer, ReplicaOffer
from hybrid_serve.negotiation.store import MemoryStore, RayStore, Store
from hybrid_serve.plan.kv_plan import EngineReport
from hybrid_serve.rollout.wire import Order, ReplicaRun

logger = logging.getLogger(__name__)

ACTOR_NAME = "hybrid_serve_planner"
NAMESPACE = "hybrid_serve"
# Ray gives the head node this resource; Ray Serve pins its controller the same way.
HEAD_NODE = {"node:__internal_head__": 0.001}


class Planner:
    """Plans for replicas that ask and remembers what they got.

    Planning is a pure function of the offer and of the fleet's agreement. Agreements, overrides and the number of
    starts are kept in `store`, written before the answer that they concern is given; everything else comes back with
    the replicas' next heartbeats, which a restarted planner answers with the wish for a full report.
    """

    def __init__(self, store: Store | None = None) -> None:
        self._kept = Kept(store or MemoryStore())
        self._kept.count_start()
        self._book = Book(time.monotonic, agreements=self._kept.agreements)
        self._metrics = PlannerMetrics()

    async def ping(self) -> str:
        return "pong"

    async def negotiate(self, offer: ReplicaOffer) -> PlanAnswer:
        """The plan for one replica, or its refusal."""
        answer = self._book.negotiate(offer)
        self._keep()
        if answer.refusal:
            logger.warning("replica %s is refused: %s", offer.replica_id, answer.refusal)
            self._metrics.rejected(offer)
        return answer

    async def report(
        self, offer: ReplicaOffer, answer: PlanAnswer, report: EngineReport | None, incarnation: str = ""
    ) -> None:
        """What a replica got. `report` is None while its engine is still starting."""
        entry = self._book.record(offer, answer, report, incarnation)
        self._keep()
        if entry.differences:
            logger.error("replica %s does not run its plan: %s", offer.replica_id, "; ".join(entry.differences))

    async def heartbeat(self, replica_id: str, incarnation: str, run: ReplicaRun | None = None) -> Order:
        """The replica lives, and does this. It must report in full if this planner does not know it (any more)."""
        known = self._book.heartbeat(replica_id, incarnation)
        self._keep()
        return Order(known=known)

    async def forget(self, replica_id: str) -> None:
        """The replica has stopped."""
        self._book.forget(replica_id)

    async def overrides(self, model: str) -> dict[str, Any]:
        """What was set for a model with `set_override`."""
        return self._kept.overrides(model)

    async def set_override(self, model: str, key: str, value: Any) -> None:
        """Keep one JSON value for a model; None removes it. Raises ValueError if it is too large or one too many."""
        self._kept.set_override(model, key, value)

    async def status(self) -> dict[str, Any]:
        """Everything the planner knows, as plain values. `integrity` is empty unless the book contradicts itself."""
        entries, counts = self._book.entries(), self._book.counts()
        self._keep()
        return {
            "replicas": [entry.to_json() for entry in entries],
            "refused": [refused.to_json(time.monotonic()) for refused in self._book.refused()],
            "agreements": [agreement.to_json() for agreement in self._book.agreements()],
            "overrides": self._kept.all_overrides(),
            "starts": self._kept.starts,
            "pid": os.getpid(),
            "refusals": counts.refusals,
            "forgotten_silent": counts.silent,
            "forgotten_for_space": counts.for_space,
            "integrity": self._integrity(),
        }

    def _keep(self) -> None:
        self._kept.keep(self._book.agreements())

    def _integrity(self) -> str:
        try:
            self._book.check_integrity()
        except AssertionError as error:
            logger.error("the planner's book is not consistent: %s", error)
            return str(error)
        return ""


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
        .remote(RayStore())
    )
