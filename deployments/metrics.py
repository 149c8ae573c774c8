"""Gauges of a replica and of the ingress, set every `METRICS_PERIOD_S`."""

from collections.abc import Mapping
from typing import Any

from hybrid_serve import metrics
from hybrid_serve.engine.base import EngineStats
from hybrid_serve.metrics import Metric
from hybrid_serve.plan.kv_plan import EngineReport, KVPlan, differences

METRICS_PERIOD_S = 5.0
"""A gauge is exported once after it was set, and forgotten by Ray's agent 20 s later: set it again before."""


class _Gauges:
    """Gauges with the tags that do not change."""

    def __init__(self, tags: Mapping[str, str], *kinds: Metric) -> None:
        self._tags = dict(tags)
        self._gauges: dict[str, Any] = {metric.name: metric.create() for metric in kinds}

    def set(self, metric: Metric, value: float, **tags: str) -> None:
        self._gauges[metric.name].set(float(value), tags={**self._tags, **tags})


class ReplicaMetrics:
    """What one replica shows of itself. A replica that stops is forgotten by Ray's agent within 20 s."""

    def __init__(self, *, app: str, model: str, pool: str, replica: str) -> None:
        self._gauges = _Gauges(
            {"app": app, "model": model, "pool": pool, "replica": replica},
            *(metric for metric in metrics.ALL if metric.kind == "gauge"),
        )

    def show_plan(self, plan: KVPlan | None, source: str, report: EngineReport | None, generation: str) -> None:
        """The plan in force, and what the engine got. Without a plan or a report that part is left out."""
        gauges = self._gauges
        if plan is not None:
            gauges.set(metrics.PLAN_INFO, 1, plan_id=plan.plan_id, source=source, generation=generation)
            gauges.set(metrics.KV_TOKENS_PREDICTED, plan.kv_tokens)
            gauges.set(metrics.KV_GROUPS, len(plan.groups))
        if report is not None:
            gauges.set(metrics.KV_TOKENS_ACTUAL, report.kv_tokens)
        if plan is not None and report is not None:
            gauges.set(metrics.PLAN_DIFFERENCES, len(differences(plan, report)))

    def show_engine(self, stats: EngineStats, *, kv_tokens: int, reserved_kv_tokens: float) -> None:
        """Live figures; `kv_tokens` is what the engine holds at most."""
        gauges = self._gauges
        gauges.set(metrics.KV_TOKENS_IN_USE, stats.kv_usage * kv_tokens)
        gauges.set(metrics.KV_TOKENS_RESERVED, reserved_kv_tokens)
        gauges.set(metrics.ACCEPTANCE_LENGTH, stats.mean_acceptance_length or 1.0)
        gauges.set(metrics.DRAFTS, stats.drafts)
        gauges.set(metrics.ACCEPTED_TOKENS, stats.accepted_tokens)
        gauges.set(metrics.PREEMPTIONS, stats.preemptions)
        gauges.set(metrics.REQUESTS, stats.running, state="running")
        gauges.set(metrics.REQUESTS, stats.waiting, state="waiting")


class IngressMetrics:
    """What one ingress replica shows."""

    def __init__(self, *, app: str, replica: str) -> None:
        self._app = app
        self._gauges = _Gauges({"app": app, "pool": "", "replica": replica, "state": "queued"}, metrics.REQUESTS)
        self._rejected = metrics.REJECTED.create()

    def show_queue(self, queued: Mapping[str, int]) -> None:
        """Requests that wait for a replica, by model; every model that is served, also those with none."""
        for model, count in queued.items():
            self._gauges.set(metrics.REQUESTS, count, model=model)

    def rejected(self, reason: str) -> None:
        """One request was answered 503. `reason` is one of a few fixed words."""
        self._rejected.inc(tags={"app": self._app, "reason": reason})
