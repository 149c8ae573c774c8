"""The planner actor: one per cluster, detached, restarted by Ray if it dies."""

import asyncio
import logging
import os
import time
from collections.abc import Callable
from typing import Any, TypeVar

import ray
from ray.actor import ActorHandle

from hybrid_serve.facts.device import DeviceFacts
from hybrid_serve.negotiation.book import Book
from hybrid_serve.negotiation.kept import Kept
from hybrid_serve.negotiation.metrics import PlannerMetrics
from hybrid_serve.negotiation.offer import PlanAnswer, ReplicaOffer
from hybrid_serve.negotiation.store import MemoryStore, RayStore, Store
from hybrid_serve.plan.kv_plan import EngineReport
from hybrid_serve.rollout.applier import Apply, BackgroundApplier, apply_in_a_task
from hybrid_serve.rollout.host import Rollouts
from hybrid_serve.rollout.ledger import LedgerError
from hybrid_serve.rollout.presence import BoundTo, IsDeployed, bound_to, is_deployed
from hybrid_serve.rollout.wire import GenerationOffer, Order, ReplicaRun, RolloutOptions

logger = logging.getLogger(__name__)

T = TypeVar("T")

ACTOR_NAME = "hybrid_serve_planner"
NAMESPACE = "hybrid_serve"
# Ray gives the head node this resource; Ray Serve pins its controller the same way.
HEAD_NODE = {"node:__internal_head__": 0.001}
TICK_S = 1.0
LOOK_PERIOD_S = 5.0
"""Seconds between looks for apps of which no replica lives: Ray Serve may have deleted them."""


class Planner:
    """Plans for replicas that ask and remembers what they got.

    Planning is a pure function of the offer and of the fleet's agreement. Agreements, overrides and the number of
    starts are kept in `store`, written before the answer that they concern is given; everything else comes back with
    the replicas' next heartbeats, which a restarted planner answers with the wish for a full report.

    It also has the rollouts (`hybrid_serve.rollout`): what each app is to run is in the same store, and goes out with
    the answers to heartbeats.
    """

    def __init__(
        self,
        store: Store | None = None,
        apply: Apply = apply_in_a_task,
        is_deployed: IsDeployed = is_deployed,
        bound_to: BoundTo = bound_to,
    ) -> None:
        store = store or MemoryStore()
        self._rollouts = Rollouts(store, _clock(), BackgroundApplier(apply))
        self._is_deployed = is_deployed
        self._bound_to = bound_to
        self._ticking: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[None] | None = None
        self._kept = Kept(store)
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
        """The replica lives: what it is to run, and whether it must report in full since it is not known here."""
        self._tick_from_now_on()
        known = self._book.heartbeat(replica_id, incarnation)
        self._keep()
        return self._rollouts.heartbeat(replica_id, known, run)

    async def forget(self, replica_id: str) -> None:
        """The replica has stopped."""
        self._book.forget(replica_id)
        self._rollouts.forget(replica_id)

    async def deployed(self, offer: GenerationOffer, known: bool = False) -> int | None:
        """An app's ingress tells what Ray Serve deployed it with: the number of the generation. Idempotent.

        Args:
            known: it should be known already, by an earlier word or since a rollout deployed it. It counts, then, only
                if the app is not deployed as far as is written here, and Ray Serve has it; None if it does not count.

        Raises:
            LedgerError: it could not be written; tell it again.
        """
        self._tick_from_now_on()
        if known and (self._rollouts.has_deployed(offer.app) or not await self._certainly_deployed(offer.app)):
            return None
        return self._rollouts.deployed(offer)

    async def begin(
        self, offer: GenerationOffer, options: RolloutOptions, actor: str, reason: str = ""
    ) -> dict[str, Any]:
        """Roll a generation out: {"started", "generation"}, {"unchanged"}, {"attached"} or {"refused"}."""
        await self._knows_the_fleet(offer.app)
        return self._asked(lambda: self._rollouts.begin(offer, options, actor, reason))

    async def rollback(self, app: str, to: int | None, actor: str, reason: str = "") -> dict[str, Any]:
        """Turn the active rollout back, or roll the last good generation (or `to`) out. Answers as `begin` does."""
        await self._knows_the_fleet(app)
        return self._asked(lambda: self._rollouts.rollback(app, to, actor, reason))

    async def pause(self, app: str, actor: str) -> dict[str, Any]:
        """No steps forward; a gate that fails still rolls back. {"paused"}, {"unchanged"} or {"refused"}."""
        return self._asked(lambda: self._rollouts.pause(app, True, actor))

    async def resume(self, app: str, actor: str) -> dict[str, Any]:
        """Go on after `pause`. {"resumed"}, {"unchanged"} or {"refused"}."""
        return self._asked(lambda: self._rollouts.pause(app, False, actor))

    async def pool_config(self, app: str, digest: str, pool: str) -> Any:
        """What a replica of the pool is configured with in a generation. ValueError if there is none."""
        return _told(lambda: self._rollouts.pool_config(app, digest, pool))

    async def rollouts(self, app: str | None = None) -> dict[str, Any]:
        """Generations, rollout and measured devices of every app, or of one, as plain values."""
        self._tick_from_now_on()
        return self._rollouts.rollouts(app)

    async def history(self, app: str | None = None) -> list[dict[str, Any]]:
        """What happened, oldest first, as plain values."""
        return self._rollouts.history(app)

    async def generation(self, app: str, number: int | None = None) -> dict[str, Any]:
        """One generation with its configuration; None is the current one. ValueError if there is none."""
        return _told(lambda: self._rollouts.generation(app, number))

    async def measured(self, app: str) -> dict[str, list[DeviceFacts]]:
        """Distinct devices that live replicas measured, by pool."""
        return self._rollouts.measured(app)

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

    def _tick_from_now_on(self) -> None:
        """Started by the first call: the actor's constructor runs outside its event loop."""
        if self._ticking is None or self._ticking.done():
            self._ticking = asyncio.get_running_loop().create_task(self._tick())
        if self._looking is None or self._looking.done():
            self._looking = asyncio.get_running_loop().create_task(self._look())

    async def _tick(self) -> None:
        while True:
            self._rollouts.tick()
            await asyncio.sleep(TICK_S)

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_PERIOD_S)
            for app in self._rollouts.unheard():
                await self._look_for(app)

    async def _look_for(self, app: str) -> None:
        try:
            if not await self._is_deployed(app):
                self._rollouts.deleted(app)
            elif self._rollouts.was_deleted(app) and (offer := await self._bound_to(app)) is not None:
                self._rollouts.deployed(offer)
        except Exception as error:
            logger.warning("app %s has no replica, and it can't be told whether it is deployed: %r", app, error)

    async def _certainly_deployed(self, app: str) -> bool:
        try:
            return await self._is_deployed(app)
        except Exception as error:
            logger.warning("it can't be told whether app %s is deployed: %r", app, error)
            return False

    async def _knows_the_fleet(self, app: str) -> None:
        """A planner that was restarted has heard from every replica after three heartbeats, and waits for them.

        An app of which none lives may have been deleted just now; one that was deleted may be there again.
        """
        self._tick_from_now_on()
        await asyncio.sleep(self._rollouts.settled_in)
        if app in self._rollouts.unheard() or self._rollouts.was_deleted(app):
            await self._look_for(app)

    def _asked(self, ask: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        self._tick_from_now_on()
        try:
            return ask()
        except (LedgerError, ValueError) as error:
            return {"refused": str(error)}

    def _keep(self) -> None:
        self._kept.keep(self._book.agreements())

    def _integrity(self) -> str:
        try:
            self._book.check_integrity()
            self._rollouts.check_integrity()
        except AssertionError as error:
            logger.error("what the planner knows is not consistent: %s", error)
            return str(error)
        return ""


def _clock() -> Callable[[], float]:
    """Seconds since the epoch that never go back while this process lives."""
    offset = time.time() - time.monotonic()
    return lambda: offset + time.monotonic()


def _told(ask: Callable[[], T]) -> T:
    """Raises ValueError for what the ledger can't tell, too."""
    try:
        return ask()
    except LedgerError as error:
        raise ValueError(str(error)) from None


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
