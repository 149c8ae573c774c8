"""A replica: facts, plan, engine, verification, then requests."""

import asyncio
import logging
import logging.handlers
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import asdict
from typing import Any

from ray import serve

from deployments.capacity_line import capacity_line
from deployments.config import ReplicaConfig
from deployments.engines import make_engine
from deployments.local_grpc import keep_grpc_local
from deployments.metrics import ReplicaMetrics
from deployments.observation import Observation, keep_showing
from deployments.pair import Pair, inputs_for, read_pair, source_of
from deployments.routing.accounts import Accounts
from deployments.routing.facts import ReplicaFacts
from deployments.routing.ticket import Ticket
from deployments.serving import serve_request
from hybrid_serve.engine.base import Engine, EngineConfig, EngineStartError, Message
from hybrid_serve.facts.hub import materialise
from hybrid_serve.facts.probe import measure_device
from hybrid_serve.negotiation import client as planner
from hybrid_serve.negotiation.book import REPORT_PERIOD_S
from hybrid_serve.negotiation.offer import ReplicaOffer
from hybrid_serve.plan.group_need import group_needs
from hybrid_serve.plan.inputs import PlanInputs
from hybrid_serve.plan.kv_plan import EngineReport, differences
from hybrid_serve.plan.verdict import Impossible

logger = logging.getLogger("ray.serve")


class Replica:
    """Starts one engine on the plan that the planner gives it, and runs requests in that engine's own OpenAI app.

    Life: `__init__` goes through the phases and raises if one fails; `handle` serves; `__del__`, which Ray Serve
    calls when running requests are done, ends the engine.
    """

    async def __init__(self, config: ReplicaConfig) -> None:
        keep_grpc_local()
        self._config = config
        self._engine: Engine = make_engine(config.engine.implementation)
        self._accounts = Accounts()
        self._report: EngineReport | None = None
        self._report_period_s = REPORT_PERIOD_S
        self._reporter: planner.Reporter | None = None
        self._showing: asyncio.Task[None] | None = None
        try:
            await self._start()
        except BaseException:
            await self._stop()
            raise

    async def _start(self) -> None:
        with _phase("facts"):
            device = await asyncio.to_thread(measure_device, self._config.pool.device)
            pair = await asyncio.to_thread(read_pair, self._config, device.kind)
            self._offer = self._make_offer(pair, inputs_for(self._config, pair, device))
        started = time.monotonic()
        self._answer = await planner.negotiate(self._offer, self._config.pool.negotiation_timeout_s)
        source = f"{self._answer.source}: {self._answer.note}" if self._answer.note else self._answer.source
        logger.info("plan %.1f s (%s)", time.monotonic() - started, source)
        engine_config = await self._engine_config(pair)
        self._reporter = planner.Reporter(self._offer, self._answer, self._report_period_s)
        self._reporter.begin()
        with _phase("engine"), _log_file_kept():
            report = await self._engine.start(engine_config)
        with _phase("verify"):
            self._report = report
            await self._reporter.started(report)
        self._observe(report)
        line = capacity_line(self._answer.decision, report, self._offer.inputs.capabilities.version)
        logger.log(logging.ERROR if self._differences() else logging.INFO, "%s", line)

    def _observe(self, report: EngineReport) -> None:
        context = serve.get_replica_context()
        gauges = ReplicaMetrics(
            app=context.app_name,
            model=self._offer.model_name,
            pool=self._offer.pool,
            replica=context.replica_id.unique_id,
        )
        self._observation = Observation(self._engine, self._accounts, report, gauges)
        self._showing = keep_showing(lambda: self._observation.show(self._answer))

    def _make_offer(self, pair: Pair, inputs: PlanInputs) -> ReplicaOffer:
        return ReplicaOffer(
            replica_id=serve.get_replica_context().replica_id.unique_id,
            pool=self._config.pool.name,
            model_name=str(self._config.model.name),
            target_fingerprint=pair.target.fingerprint,
            drafter_fingerprint=pair.drafter.fingerprint if pair.drafter else None,
            inputs=inputs,
            policy=self._config.engine.policy,
            fleet=self._config.fleet,
        )

    async def _engine_config(self, pair: Pair) -> EngineConfig:
        chosen = self._answer.decision.chosen
        if isinstance(chosen, Impossible):
            why = self._answer.refusal or f"{chosen.reason}; {chosen.remedy}"
            raise EngineStartError(f"no KV plan for {self._offer.model_name}: {why}")
        model = self._config.model
        with _phase("weights"):
            target = await asyncio.to_thread(materialise, source_of(str(model.target)), pair.target.revision)
            drafter = None
            if pair.drafter is not None:
                drafter = await asyncio.to_thread(materialise, source_of(str(model.drafter)), pair.drafter.revision)
        return EngineConfig(
            model_name=self._offer.model_name,
            target_path=str(target),
            drafter_path=None if drafter is None else str(drafter),
            target=pair.target,
            drafter=pair.drafter,
            settings=self._answer.inputs.settings,
            plan=chosen.plan,
            engine_args=dict(self._config.engine.vllm_args),
            needs=group_needs(chosen.plan, self._answer.inputs),
        )

    async def handle(self, scope: dict[str, Any], body: bytes, ticket: Ticket | None = None) -> AsyncGenerator[Message]:
        """One HTTP request in the engine's app: its ASGI messages, see `deployments.serving.serve_request`."""
        async with aclosing(serve_request(self._engine, self._accounts, scope, body, ticket)) as messages:
            async for message in messages:
                yield message

    async def stats(self) -> dict[str, Any]:
        """The engine's live figures, and what it got, as plain values."""
        stats = await self._engine.stats()
        return {
            "replica_id": self._offer.replica_id,
            "engine": asdict(stats),
            "reserved": self._accounts.reserved,
            "report": None if self._report is None else self._report.to_json(),
            "plan_source": self._answer.source,
            "plan_note": self._answer.note,
            "differences": list(self._differences()),
        }

    def reconfigure(self, user_config: Any) -> None:
        """Light options of a running replica. Idempotent; never raises, which would kill the replica."""
        try:
            self._report_period_s = max(1.0, float(user_config["report_period_s"]))
            if self._reporter is not None:
                self._reporter.period_s = self._report_period_s
        except (TypeError, KeyError, ValueError) as error:
            logger.error("ignored user_config %r: %r", user_config, error)

    async def check_health(self) -> None:
        """Raises if the engine died: Ray Serve then replaces this replica."""
        await self._engine.check_health()

    def record_replica_metadata(self) -> dict[str, Any]:
        """Static facts for request routers: `deployments.routing.facts.ReplicaFacts`."""
        plan, report, inputs = self._answer.decision.plan, self._report, self._answer.inputs
        assert plan is not None and report is not None, "a replica that is ready has a plan and its engine's report"
        return ReplicaFacts(
            pool=self._offer.pool,
            model_name=self._offer.model_name,
            plan_id=plan.plan_id,
            num_blocks=report.num_blocks,
            kv_tokens=report.kv_tokens,
            max_model_len=inputs.settings.max_model_len,
            max_num_seqs=inputs.settings.max_num_seqs,
            reuses_prefixes=self._engine.reuses_prefixes,
            drain_s=self._config.pool.graceful_shutdown_timeout_s,
            groups=group_needs(plan, inputs),
        ).to_metadata()

    async def record_routing_stats(self) -> dict[str, Any]:
        """Live facts for request routers; Ray Serve asks every `routing.stats_period_s`."""
        try:
            await self._engine.check_health()
            healthy = True
        except EngineStartError:
            healthy = False
        return self._accounts.report(await self._engine.stats(), healthy=healthy).to_stats()

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
        if self._reporter is not None:
            await self._reporter.stop()
        await self._engine.stop()

    def _differences(self) -> tuple[str, ...]:
        plan = self._answer.decision.plan
        return () if plan is None or self._report is None else differences(plan, self._report)


@contextmanager
def _phase(name: str) -> Iterator[None]:
    started = time.monotonic()
    yield
    logger.info("%s %.1f s", name, time.monotonic() - started)


@contextmanager
def _log_file_kept() -> Iterator[None]:
    """vLLM configures logging when it is imported. Python then closes every handler of the process, and one that
    buffers, as Ray Serve's does, forgets the log file behind it."""
    targets = [(h, h.target) for h in logger.handlers if isinstance(h, logging.handlers.MemoryHandler)]
    try:
        yield
    finally:
        for handler, target in targets:
            handler.setTarget(target)
