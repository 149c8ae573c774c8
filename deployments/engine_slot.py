"""The place of a replica's one engine: what runs in it, the requests on it, and what it tells of itself."""

import logging
import logging.handlers
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from typing import Any

from deployments.capacity_line import capacity_line
from deployments.engines import make_engine
from deployments.preparing import Prepared, phase
from deployments.requests_here import RequestsHere
from deployments.routing.accounts import Accounts
from deployments.routing.facts import ReplicaFacts
from deployments.routing.ticket import Ticket
from deployments.serving import serve_request
from hybrid_serve.engine.base import Engine, EngineStartError, EngineStats, Message
from hybrid_serve.plan.kv_plan import EngineReport, differences
from hybrid_serve.rollout.wire import Figures

logger = logging.getLogger("ray.serve")

NOTHING_RUNS = EngineStats(
    running=0, waiting=0, kv_usage=0.0, drafts=0, draft_tokens=0, accepted_tokens=0, accepted_per_position=()
)


@dataclass(frozen=True, kw_only=True)
class Running:
    """An engine that has started, on what it was started with, and what it got."""

    prepared: Prepared
    engine: Engine
    report: EngineReport

    @property
    def differences(self) -> tuple[str, ...]:
        """Between plan and engine; empty if predicted = actual."""
        planned = self.prepared.answer.decision.plan
        return () if planned is None else differences(planned, self.report)

    @property
    def facts(self) -> ReplicaFacts:
        """What request routers must know of it."""
        prepared, answer = self.prepared, self.prepared.answer
        planned = answer.decision.plan
        assert planned is not None, "an engine runs, so there was a plan"
        return ReplicaFacts(
            pool=prepared.offer.pool,
            model_name=prepared.offer.model_name,
            plan_id=planned.plan_id,
            num_blocks=self.report.num_blocks,
            kv_tokens=self.report.kv_tokens,
            max_model_len=answer.inputs.settings.max_model_len,
            max_num_seqs=answer.inputs.settings.max_num_seqs,
            reuses_prefixes=self.engine.reuses_prefixes,
            drain_s=prepared.config.pool.graceful_shutdown_timeout_s,
            groups=prepared.engine.needs,
        )


class EngineSlot:
    """Holds one engine after another.

    Life: `start` fills it, `open` lets requests in, `drain` shuts them out and waits for those inside, `stop` ends the
    engine; then it may be filled again. One event loop owns it, and one caller at a time.

    Attributes:
        running: what runs here; None while nothing does.
    """

    def __init__(self, make: Callable[[str], Engine] = make_engine) -> None:
        self.accounts = Accounts()
        self.running: Running | None = None
        self._make = make
        self._engine: Engine | None = None
        self._requests = RequestsHere()
        self._adopted_at = Figures()

    async def start(self, prepared: Prepared) -> Running:
        """Starts an engine where none is.

        Raises:
            EngineStartError: it did not start. Call `stop` then, too.
        """
        assert self._engine is None, "the engine before has not ended"
        self._engine = engine = self._make(prepared.config.engine.implementation)
        with phase("engine"), log_file_kept():
            report = await engine.start(prepared.engine)
        self.running = running = Running(prepared=prepared, engine=engine, report=report)
        line = capacity_line(prepared.answer.decision, report, prepared.offer.inputs.capabilities.version)
        logger.log(logging.ERROR if running.differences else logging.INFO, "%s", line)
        return running

    async def adopt(self, prepared: Prepared) -> Running:
        """The engine that runs is taken for another configuration's, which it serves as well. No request notices."""
        assert self.running is not None, "there is an engine to adopt"
        self._adopted_at = await self._engine_figures()
        self.running = Running(prepared=prepared, engine=self.running.engine, report=self.running.report)
        return self.running

    def open(self) -> None:
        """Lets requests in."""
        self._requests.open()

    @property
    def is_open(self) -> bool:
        return self._requests.is_open

    async def drain(self, seconds: float) -> None:
        """Lets no request in; those inside may take so long, then they are ended. If cancelled, it stays shut."""
        with phase("drain"):
            ended = await self._requests.drained(seconds)
        if ended:
            logger.warning("%d requests did not end in %g s and were ended", ended, seconds)

    async def stop(self) -> None:
        """Ends the engine, also one that did not start, and waits for its end. Safe to repeat."""
        self._requests.close()
        running, self.running = self.running, None
        engine = self._engine
        if engine is None:
            return
        totals = None
        try:
            totals = None if running is None else await engine.stats()
        except Exception as error:
            logger.warning("the engine's last totals are not known: %r", error)
        self.accounts.engine_ended(totals)
        self._adopted_at = Figures()
        with phase("stop"):
            await engine.stop()
        self._engine = None

    async def serve(self, scope: dict[str, Any], body: bytes, ticket: Ticket | None) -> AsyncGenerator[Message]:
        """One request, see `deployments.serving.serve_request`.

        Raises:
            ReplicaDraining: no request is let in.
        """
        with self._requests.one() as ended:
            assert self.running is not None, "the slot is open, so an engine runs"
            engine = self.running.engine
            async with aclosing(serve_request(engine, self.accounts, scope, body, ticket, ended)) as messages:
                async for message in messages:
                    yield message

    async def check_health(self) -> None:
        """Raises EngineStartError if no engine runs, or a dead one."""
        if self.running is None:
            raise EngineStartError("no engine runs")
        await self.running.engine.check_health()

    async def stats(self) -> EngineStats:
        """Live figures; those of an idle engine while there is none."""
        return NOTHING_RUNS if self.running is None else await self.running.engine.stats()

    async def figures(self) -> Figures | None:
        """Totals of the configuration that runs: since its engine's start, or since it was adopted. None without an
        engine."""
        return None if self.running is None else _since(self._adopted_at, await self._engine_figures())

    async def _engine_figures(self) -> Figures:
        stats = await self.stats()
        return Figures(
            requests=self.accounts.requests,
            errors=self.accounts.errors,
            ttft_count=stats.ttft_count,
            ttft_sum_s=stats.ttft_sum_s,
            tpot_count=stats.tpot_count,
            tpot_sum_s=stats.tpot_sum_s,
            drafts=stats.drafts,
            accepted_per_position=stats.accepted_per_position,
        )


def _since(before: Figures, now: Figures) -> Figures:
    """What was added; both are of one engine."""
    accepted = before.accepted_per_position or (0,) * len(now.accepted_per_position)
    return Figures(
        requests=now.requests - before.requests,
        errors=now.errors - before.errors,
        ttft_count=now.ttft_count - before.ttft_count,
        ttft_sum_s=now.ttft_sum_s - before.ttft_sum_s,
        tpot_count=now.tpot_count - before.tpot_count,
        tpot_sum_s=now.tpot_sum_s - before.tpot_sum_s,
        drafts=now.drafts - before.drafts,
        accepted_per_position=tuple(n - b for n, b in zip(now.accepted_per_position, accepted, strict=True)),
    )


@contextmanager
def log_file_kept() -> Iterator[None]:
    """vLLM configures logging when it is imported. Python then closes every handler of the process, and one that
    buffers, as Ray Serve's does, forgets the log file behind it."""
    targets = [(h, h.target) for h in logger.handlers if isinstance(h, logging.handlers.MemoryHandler)]
    try:
        yield
    finally:
        for handler, target in targets:
            handler.setTarget(target)
