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

from deployments.asgi import run_app
from deployments.capacity_line import capacity_line
from deployments.config import ReplicaConfig
from deployments.engines import make_engine
from deployments.local_grpc import keep_grpc_local
from deployments.pair import Pair, inputs_for, read_pair, source_of
from hybrid_serve.engine.base import Engine, EngineConfig, EngineStartError, Message
from hybrid_serve.facts.hub import materialise
from hybrid_serve.facts.probe import measure_device
from hybrid_serve.negotiation import client as planner
from hybrid_serve.negotiation.book import REPORT_PERIOD_S
from hybrid_serve.negotiation.offer import ReplicaOffer
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
        self._report: EngineReport | None = None
        self._report_period_s = REPORT_PERIOD_S
        self._reporter: planner.Reporter | None = None
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
        line = capacity_line(self._answer.decision, report, self._offer.inputs.capabilities.version)
        logger.log(logging.ERROR if self._differences() else logging.INFO, "%s", line)

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
        )

    async def handle(self, scope: dict[str, Any], body: bytes) -> AsyncGenerator[Message]:
        """One HTTP request in the engine's app: its ASGI messages, unbatched.

        Closing or cancelling this generator aborts the request in the engine.
        """
        async with aclosing(run_app(self._engine.app, scope, body)) as messages:
            async for message in messages:
                yield message

    async def stats(self) -> dict[str, Any]:
        """The engine's live figures, and what it got, as plain values."""
        stats = await self._engine.stats()
        return {
            "replica_id": self._offer.replica_id,
            "engine": asdict(stats),
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
        """Static facts for request routers."""
        plan = self._answer.decision.plan
        return {
            "pool": self._offer.pool,
            "model_name": self._offer.model_name,
            "plan_id": None if plan is None else plan.plan_id,
            "num_blocks": 0 if self._report is None else self._report.num_blocks,
            "kv_tokens": 0 if self._report is None else self._report.kv_tokens,
        }

    async def __del__(self) -> None:
        await self._stop()

    async def _stop(self) -> None:
        """Ends the engine by its own means; safe to repeat."""
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
