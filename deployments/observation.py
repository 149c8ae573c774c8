"""What a replica tells others while it runs: figures for autoscaling, gauges for Prometheus."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from deployments.autoscaling.figures import replica_figures
from deployments.engine_slot import EngineSlot
from deployments.metrics import METRICS_PERIOD_S, ReplicaMetrics

logger = logging.getLogger("ray.serve")


class Observation:
    """Of one replica, from its first engine on."""

    def __init__(self, slot: EngineSlot, gauges: ReplicaMetrics) -> None:
        """`slot` has an engine."""
        assert slot.running is not None, "what is observed runs"
        self._slot = slot
        self._report = slot.running.report
        self._gauges = gauges

    async def autoscaling_stats(self) -> dict[str, float]:
        """For Ray Serve's `record_autoscaling_stats`. A replica that changes its engine is as large as it was."""
        if self._slot.running is not None:
            self._report = self._slot.running.report
        stats, accounts = await self._slot.stats(), self._slot.accounts
        return replica_figures(
            kv_tokens=self._report.kv_tokens,
            num_blocks=self._report.num_blocks,
            kv_usage=stats.kv_usage,
            reserved_blocks=self._reserved_blocks,
            largest_blocks=accounts.largest_blocks,
            running=stats.running,
            waiting=stats.waiting,
        ).to_stats()

    async def show(self) -> None:
        """Sets every gauge; none while no engine runs, so that they are forgotten."""
        running = self._slot.running
        if running is None:
            return
        report, answer = running.report, running.prepared.answer
        generation = running.prepared.config.generation
        self._gauges.show_plan(answer.decision.plan, answer.source, report, generation)
        reserved = self._reserved_blocks * report.kv_tokens / report.num_blocks
        stats = await self._slot.stats()
        self._gauges.show_engine(stats, kv_tokens=report.kv_tokens, reserved_kv_tokens=reserved)

    @property
    def _reserved_blocks(self) -> int:
        return sum(blocks for blocks, _ in self._slot.accounts.reserved.values())


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
