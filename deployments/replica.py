"""A replica: facts, plan, engine, verification, then requests; and another engine when the planner orders one."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import asdict
from typing import Any

from ray import serve

from deployments.config import ReplicaConfig
from deployments.engine_slot import EngineSlot
from deployments.local_grpc import keep_grpc_local
from deployments.metrics import ReplicaMetrics
from deployments.observation import Observation, keep_showing
from deployments.preparing import Planned, Prepared, plan, prepare
from deployments.routing.facts import ReplicaFacts
from deployments.routing.ticket import Ticket
from deployments.switching import Switching
from hybrid_serve.engine.base import EngineStartError, Message
from hybrid_serve.negotiation import client as planner
from hybrid_serve.negotiation.book import REPORT_PERIOD_S
from hybrid_serve.rollout.wire import ReplicaRun

logger = logging.getLogger("ray.serve")


class Replica:
    """Starts one engine on the plan that the planner gives it, and runs requests in that engine's own OpenAI app.

    Life: `__init__` goes through the phases and raises if one fails; `handle` serves; in between the engine may be
    changed for that of another generation (`deployments.switching`); `__del__`, which Ray Serve calls when running
    requests are done, ends the engine.
    """

    async def __init__(self, config: ReplicaConfig) -> None:  # type: ignore[misc]  # Ray Serve awaits it
        keep_grpc_local()
        context = serve.get_replica_context()
        self._app, self._id = context.app_name, context.replica_id.unique_id
        self._slot = EngineSlot()
        self._report_period_s = REPORT_PERIOD_S
        self._reporter: planner.Reporter | None = None
        self._switching: Switching | None = None
        self._showing: asyncio.Task[None] | None = None
        try:
            await self._start(await plan(config, self._id))
        except BaseException:
            await self._stop()
            raise

    async def _start(self, planned: Planned) -> None:
        pool = planned.offer.pool

        async def fetch(digest: str) -> ReplicaConfig:
            config: ReplicaConfig = await planner.pool_config(self._app, digest, pool)
            return config

        switching = self._switching = Switching(self._slot, self._app, planned, fetch=fetch, prepare=self._prepared_for)
        if not planned.answer.refusal:
            switching.informed = self._reporter = planner.Reporter(
                planned.offer,
                planned.answer,
                self._report_period_s,
                run=switching.run,
                on_order=switching.follow,
            )
            self._reporter.begin()
        running = await switching.start(await prepare(planned))
        self._facts_at_start = self._last_facts = running.facts
        gauges = ReplicaMetrics(app=self._app, model=planned.offer.model_name, pool=pool, replica=self._id)
        self._observation = Observation(self._slot, gauges)
        self._showing = keep_showing(self._observation.show)

    async def _prepared_for(self, config: ReplicaConfig) -> Prepared:
        return await prepare(await plan(config, self._id))

    async def handle(self, scope: dict[str, Any], body: bytes, ticket: Ticket | None = None) -> AsyncGenerator[Message]:
        """One HTTP request in the engine's app: its ASGI messages, see `deployments.serving.serve_request`."""
        async with aclosing(self._slot.serve(scope, body, ticket)) as messages:
            async for message in messages:
                yield message

    async def stats(self) -> dict[str, Any]:
        """The engine's live figures, and what it got, as plain values."""
        run = await self._run()
        running = self._slot.running
        answer = None if running is None else running.prepared.answer
        return {
            "replica_id": self._id,
            "generation": run.digest,
            "phase": run.phase,
            "engine": asdict(await self._slot.stats()),
            "reserved": self._slot.accounts.reserved,
            "report": None if running is None else running.report.to_json(),
            "plan_source": None if answer is None else answer.source,
            "plan_note": None if answer is None else answer.note,
            "differences": list(run.differences),
        }

    async def _run(self) -> ReplicaRun:
        assert self._switching is not None, "Ray Serve asks a replica that has started"
        return await self._switching.run()

    def reconfigure(self, user_config: Any) -> None:
        """Light options of a running replica. Idempotent; never raises, which would kill the replica."""
        try:
            self._report_period_s = max(1.0, float(user_config["report_period_s"]))
            if self._reporter is not None:
                self._reporter.period_s = self._report_period_s
        except (TypeError, KeyError, ValueError) as error:
            logger.error("ignored user_config %r: %r", user_config, error)

    async def check_health(self) -> None:
        """Raises if the engine died: Ray Serve then replaces this replica. Not while the engine is changed."""
        if self._switching is not None:
            await self._switching.check_health()

    def record_replica_metadata(self) -> dict[str, Any]:
        """Static facts for request routers: `deployments.routing.facts.ReplicaFacts`."""
        return self._facts_at_start.to_metadata()

    async def record_routing_stats(self) -> dict[str, Any]:
        """Live facts for request routers; Ray Serve asks every `routing.stats_period_s`."""
        try:
            await self.check_health()
            healthy = True
        except EngineStartError:
            healthy = False
        facts = self._facts()
        load = self._slot.accounts.report(
            await self._slot.stats(),
            healthy=healthy,
            draining=not self._slot.is_open,
            facts=None if facts == self._facts_at_start else facts.to_metadata(),
        )
        return load.to_stats()

    def _facts(self) -> ReplicaFacts:
        """Of the engine that runs; while none does, of the last one that did."""
        if self._slot.running is not None:
            self._last_facts = self._slot.running.facts
        return self._last_facts

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Live figures for `deployments.autoscaling.policy`; Ray Serve asks every second."""
        return await self._observation.autoscaling_stats()

    async def __del__(self) -> None:
        await self._stop()

    async def _stop(self) -> None:
        """Ends the engine by its own means; safe to repeat."""
        if self._showing is not None:
            self._showing.cancel()
            self._showing = None
        if self._switching is not None:
            await self._switching.close()
        if self._reporter is not None:
            await self._reporter.stop()
        await self._slot.stop()
