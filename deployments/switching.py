"""A replica changes to another generation in place: as ordered, and back by itself if that fails."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Protocol

from deployments.config import ReplicaConfig
from deployments.engine_slot import EngineSlot, Running
from deployments.preparing import Planned, Prepared, phase
from hybrid_serve.engine.base import EngineStartError
from hybrid_serve.facts.device import DeviceFacts
from hybrid_serve.facts.errors import FactsError
from hybrid_serve.negotiation.client import PlannerUnreachable
from hybrid_serve.negotiation.offer import PlanAnswer, ReplicaOffer
from hybrid_serve.plan.kv_plan import EngineReport
from hybrid_serve.rollout.wire import FailedSwitch, Figures, Order, ReplicaPhase, ReplicaRun

logger = logging.getLogger("ray.serve")

START_LIMIT_S = 3600.0
"""An engine that has not started by then never does. A planner that can be reached has given up long before."""


class Informed(Protocol):
    """Who is told of every new offer, answer and report: a `hybrid_serve.negotiation.client.Reporter`."""

    def offered(self, offer: ReplicaOffer, answer: PlanAnswer) -> None: ...

    async def started(self, report: EngineReport) -> bool: ...

    def beat_soon(self) -> None: ...


class Switching:
    """Follows orders: fetch the configuration, plan and get the weights while the old engine serves, then drain, stop
    the old engine, start the new one, verify it, serve.

    If anything fails before the drain, the old engine was not touched. If the new engine does not start, or not on its
    plan, the old configuration is started again, of which everything is still here. If that does not start either,
    `check_health` raises, so that Ray Serve replaces the replica.

    An order for what runs, or for what is being changed to, changes nothing. Another one takes the place of the first
    as long as the old engine runs; later only the order back to the old generation is heard, and ends the new engine's
    start. One that failed is not followed again until the planner has answered something else in between: then it has
    heard of it.

    Attributes:
        phase: what the replica does.
        digest: of the generation that it serves, or is about to.
        failed: the last switch that failed; None once another one begins.
        before: digest and figures of the engine before this one, as they were when that had drained.
    """

    def __init__(
        self,
        slot: EngineSlot,
        app: str,
        planned: Planned,
        *,
        fetch: Callable[[str], Awaitable[ReplicaConfig]],
        prepare: Callable[[ReplicaConfig], Awaitable[Prepared]],
    ) -> None:
        """Of a replica that starts on `planned`.

        Args:
            fetch: the configuration of a generation, by its digest; raises ValueError if there is none, and
                PlannerUnreachable.
            prepare: plan for it and get its weights; raises FactsError and EngineStartError.
        """
        self.phase: ReplicaPhase = "starting"
        self.digest = planned.config.generation
        self.failed: FailedSwitch | None = None
        self.before: tuple[str, Figures] | None = None
        self.informed: Informed | None = None
        self._slot = slot
        self._app = app
        self._planned = planned
        self._device: DeviceFacts = planned.device
        self._fetch = fetch
        self._prepare = prepare
        self._failure_heard = True
        self._broken = ""
        self._task: asyncio.Task[None] | None = None
        self._target = ""
        self._engine_start: asyncio.Task[Running] | None = None
        self._closed = False

    async def start(self, prepared: Prepared) -> Running:
        """The replica's first engine. Orders are followed from the moment on at which this returns.

        Raises:
            EngineStartError: it did not start.
        """
        running = await self._slot.start(prepared)
        await self._tell_started(running)
        self._serve(running)
        return running

    def follow(self, order: Order) -> None:
        """The planner's answer to a heartbeat. Returns at once; what follows of it happens in the background."""
        wanted = order.run
        if self.failed is None or wanted != self.failed.digest:
            self._failure_heard = True
        if wanted is None or self._closed or self._broken or self.phase == "starting":
            return
        if self._task is None:
            if wanted != self.digest and self._failure_heard:
                self.failed = None
                self._target = wanted
                self._task = asyncio.ensure_future(self._change(wanted, order.drain_s))
                self._task.add_done_callback(self._changed)
        elif wanted != self._target:
            self._give_up(wanted)

    def _give_up(self, wanted: str) -> None:
        """The order was changed. What comes next begins with the next heartbeat, which follows at once."""
        assert self._task is not None, "there is a switch to give up"
        if self.phase != "switching":
            self._task.cancel()
        elif self._engine_start is not None and wanted == self._planned.config.generation:
            self._engine_start.cancel()

    async def close(self) -> None:
        """The replica stops. Safe to repeat; the slot is left to the caller."""
        self._closed = True
        task = self._task
        if task is not None:
            task.cancel()
            await asyncio.wait({task})

    async def check_health(self) -> None:
        """Raises EngineStartError if the engine died, or none could be started any more; not during a switch."""
        if self._broken:
            raise EngineStartError(self._broken)
        if self.phase == "serving":
            await self._slot.check_health()

    async def run(self) -> ReplicaRun:
        """What a heartbeat tells."""
        planned = self._planned
        running = self._slot.running if self.phase in ("serving", "draining") else None
        return ReplicaRun(
            app=self._app,
            model=planned.offer.model_name,
            pool=planned.offer.pool,
            digest=self.digest,
            phase=self.phase,
            figures=None if running is None else await self._slot.figures(),
            before=self.before,
            differences=() if running is None else running.differences,
            dead=await self._death(),
            failed=self.failed,
            device=self._device,
        )

    async def _death(self) -> str:
        try:
            await self.check_health()
        except EngineStartError as error:
            return str(error)
        return ""

    async def _change(self, digest: str, drain_s: float) -> None:
        logger.info("generation %s is ordered, %s runs", digest, self.digest or "none")
        try:
            prepared = await self._prepared(digest)
            if prepared is not None:
                await self._change_to(prepared, drain_s)
        except asyncio.CancelledError:
            logger.info("generation %s is no longer ordered", digest)
            if self.phase == "draining" and not self._closed:
                self._slot.open()
                self.phase = "serving"
            raise

    def _changed(self, task: "asyncio.Task[None]") -> None:
        self._task, self._target = None, ""
        self._beat()
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("a switch broke off", exc_info=error)
            if self.phase != "serving":
                self._broken = f"a switch broke off: {error!r}"

    async def _prepared(self, digest: str) -> Prepared | None:
        """While the old engine serves. None if that failed, or could not be tried."""
        try:
            config = await self._fetch(digest)
            return await self._prepare(replace(config, generation=digest))
        except PlannerUnreachable as error:
            logger.warning("the configuration of generation %s is not to be had now: %s", digest, error)
        except (EngineStartError, FactsError, ValueError) as error:
            self._fail(digest, str(error))
        except Exception as error:
            logger.exception("generation %s could not be prepared", digest)
            self._fail(digest, f"{type(error).__name__}: {error}")
        return None

    async def _change_to(self, new: Prepared, drain_s: float) -> None:
        assert self._slot.running is not None, "a replica that is no longer starting runs an engine"
        old, digest = self._slot.running.prepared, new.config.generation
        if new.runs_as(old):
            await self._adopt(new)
            return
        self.phase = "draining"
        self._beat()
        await self._slot.drain(drain_s)
        await self._remember_figures()
        self.phase, self.digest = "switching", digest
        self._planned = old
        await self._slot.stop()
        self._tell_offered(new)
        try:
            running = await self._started(new)
            if running.differences:
                raise EngineStartError(f"predicted != actual: {'; '.join(running.differences)}")
        except asyncio.CancelledError:
            if self._is_cancelled():
                raise
            logger.info("the start of generation %s was given up", digest)
        except Exception as error:
            self._fail(digest, str(error) or type(error).__name__)
        else:
            self._serve(running)
            await self._tell_started(running)
            return
        await self._fall_back(old)

    async def _adopt(self, new: Prepared) -> None:
        """An engine of the new generation would be the one that runs."""
        await self._remember_figures()
        running = await self._slot.adopt(new)
        self._tell_offered(new)
        self._serve(running)
        await self._tell_started(running)

    async def _fall_back(self, old: Prepared) -> None:
        self.digest = old.config.generation
        self._tell_offered(old)
        await self._slot.stop()
        try:
            running = await self._started(old)
        except Exception as error:
            self._broken = f"neither the new generation nor the old one starts: {error}"
            logger.error("%s", self._broken)
            return
        self.before = None
        self._serve(running)
        await self._tell_started(running)

    async def _started(self, prepared: Prepared) -> Running:
        self._engine_start = asyncio.ensure_future(self._slot.start(prepared))
        try:
            async with asyncio.timeout(START_LIMIT_S):
                return await self._engine_start
        except TimeoutError:
            raise EngineStartError(f"the engine did not start in {START_LIMIT_S:g} s") from None
        finally:
            self._engine_start = None

    def _is_cancelled(self) -> bool:
        """Whether the whole switch is, and not only the start of its engine."""
        task = asyncio.current_task()
        return task is not None and task.cancelling() > 0

    def _serve(self, running: Running) -> None:
        self._planned, self._device = running.prepared, running.prepared.device
        self.phase, self.digest = "serving", running.prepared.config.generation
        self._slot.open()

    def _fail(self, digest: str, reason: str) -> None:
        logger.error("generation %s does not run here: %s", digest, reason)
        self.failed, self._failure_heard = FailedSwitch(digest=digest, reason=reason), False

    async def _remember_figures(self) -> None:
        try:
            figures = await self._slot.figures()
        except Exception as error:
            logger.warning("the last figures of generation %s are not known: %r", self.digest, error)
            return
        if figures is not None:
            self.before = (self.digest, figures)

    def _tell_offered(self, prepared: Prepared) -> None:
        if self.informed is not None:
            self.informed.offered(prepared.offer, prepared.answer)

    async def _tell_started(self, running: Running) -> None:
        if self.informed is not None:
            with phase("verify"):
                await self.informed.started(running.report)
            self.informed.beat_soon()

    def _beat(self) -> None:
        if self.informed is not None:
            self.informed.beat_soon()
