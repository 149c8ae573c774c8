"""What a replica tells others while it runs: figures for autoscaling, gauges for Prometheus."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from deployments.autoscaling.figures import replica_figures
from deployments.metrics import METRICS_PERIOD_S, ReplicaMetrics
from deployments.routing.accounts import Accounts
from hybrid_serve.engine.base import Engine
from hybrid_serve.negotiation.offer import PlanAnswer
from hybrid_serve.plan.kv_plan import EngineReport

logger = logging.getLogger("ray.serve")


class Observation:
    """Of one replica whose engine has started."""

    def __init__(self, engine: Engine, accounts: Accounts, report: EngineReport, gauges: ReplicaMetrics) -> None:
        self._engine = engine
        self._accounts = accounts
        self._report = report
        self._gauges = gauges

    async def autoscaling_stats(self) -> dict[str, float]:
        """For Ray Serve's `record_autoscaling_stats`."""
        stats = await self._engine.stats()
        return replica_figures(
            kv_tokens=self._report.kv_tokens,
            num_blocks=self._report.num_blocks,
            kv_usage=stats.kv_usage,
            reserved_blocks=self._reserved_blocks,
            largest_blocks=self._accounts.largest_blocks,
            running=stats.running,
            waiting=stats.waiting,
        ).to_stats()

    async def show(self, answer: PlanAnswer) -> None:
        """Sets every gauge; `answer` is the plan in force."""
        report = self._report
        self._gauges.show_plan(answer.decision.plan, answer.source, report)
        reserved = self._reserved_blocks * report.kv_tokens / report.num_blocks
        stats = await self._engine.stats()
        self._gauges.show_engine(stats, kv_tokens=report.kv_tokens, reserved_kv_tokens=reserved)

    @property
    def _reserved_blocks(self) -> int:
        return sum(blocks for blocks, _ in self._accounts.reserved.values())


async def every(seconds: float, show: Callable[[], Awaitable[None]]) -> None:
    """Calls `show` again and again until it is cancelled; a failure is logged and does not end it."""
    while True:
        try:
            await show()
        except Exception as error:
            logger.warning("metrics were not set: %r", error)
        await asyncio.sleep(seconds)


def keep_showing(show: Callable[[], Awaitable[None]]) -> "asyncio.Task[None]":
    """A task that shows every `METRICS_PERIOD_S`; cancel it to end it."""
    return asyncio.ensure_future(every(METRICS_PERIOD_S, show))
