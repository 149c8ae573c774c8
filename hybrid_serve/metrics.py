"""Every metric that the project exports, in one table, and how one is made. `docs/metrics.md` is the same table."""

from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["gauge", "counter"]

_REPLICA = ("app", "model", "pool", "replica")


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One metric.

    Attributes:
        kind: Ray's agent forgets a gauge that is no longer set, but no counter before it ends itself. What a replica
            counts is therefore a gauge that only rises; counters have no tag that grows without end.
        unit: what the number counts.
        tags: names of its labels; Ray adds more of its own (node, worker, session).
    """

    name: str
    kind: Kind
    unit: str
    meaning: str
    tags: tuple[str, ...]

    @property
    def exported(self) -> str:
        """The name at Ray's endpoint."""
        return f"ray_{self.name}_total" if self.kind == "counter" else f"ray_{self.name}"

    def create(self) -> Any:
        """A `ray.util.metrics` Gauge or Counter of this process."""
        from ray.util import metrics

        make = metrics.Gauge if self.kind == "gauge" else metrics.Counter
        return make(self.name, description=self.meaning, tag_keys=self.tags)


def _gauge(name: str, unit: str, meaning: str, *more_tags: str) -> Metric:
    return Metric(name=f"hybrid_serve_{name}", kind="gauge", unit=unit, meaning=meaning, tags=(*_REPLICA, *more_tags))


def _counter(name: str, unit: str, meaning: str, *tags: str) -> Metric:
    return Metric(name=f"hybrid_serve_{name}", kind="counter", unit=unit, meaning=meaning, tags=tags)


PLAN_INFO = _gauge(
    "plan_info",
    "1",
    "Always 1: the KV plan in force, who made it (planner or local), and the generation that is served.",
    "plan_id",
    "source",
    "generation",
)
KV_TOKENS_PREDICTED = _gauge("kv_tokens_predicted", "tokens", "KV tokens that the plan says the engine will hold.")
KV_TOKENS_ACTUAL = _gauge("kv_tokens_actual", "tokens", "KV tokens that the engine holds; unlike predicted is a bug.")
KV_TOKENS_IN_USE = _gauge("kv_tokens_in_use", "tokens", "KV tokens of requests in the engine: usage times actual.")
KV_TOKENS_RESERVED = _gauge("kv_tokens_reserved", "tokens", "KV tokens that the ingress has set aside here.")
KV_GROUPS = _gauge("kv_groups", "groups", "KV cache groups of the plan.")
PLAN_DIFFERENCES = _gauge("plan_differences", "differences", "Differences between plan and engine; above 0 is a bug.")
ACCEPTANCE_LENGTH = _gauge(
    "mean_acceptance_length", "tokens", "Tokens that one step yields, mean since start; 1 without a drafter."
)
DRAFTS = _gauge("drafts", "drafts", "Drafts since the engine's start.")
ACCEPTED_TOKENS = _gauge("accepted_tokens", "tokens", "Drafted tokens that were accepted since the engine's start.")
PREEMPTIONS = _gauge("preemptions", "preemptions", "Requests put back for want of KV since the engine's start.")
REQUESTS = _gauge(
    "requests",
    "requests",
    "Requests now. In the engine: running, waiting. At the ingress (pool is empty): queued.",
    "state",
)
REJECTED = _counter(
    "requests_rejected",
    "requests",
    "Requests answered 503: full (no room in time, or too many wait), no_replica.",
    "app",
    "reason",
)
PLAN_REJECTIONS = _counter("plan_rejections", "offers", "Offers of replicas that got no plan.", "model", "pool")
PLANNER_STARTS = _counter("planner_starts", "starts", "Starts of the planner; each above the first is a restart.")
GENERATION = Metric(
    name="hybrid_serve_generation",
    kind="gauge",
    unit="number",
    meaning="The generation that every replica of the app is to run.",
    tags=("app",),
)
ROLLOUTS = _counter(
    "rollouts", "rollouts", "Rollouts that ended: done, rolled back, superseded, app deleted.", "app", "result"
)
GATE_FAILURES = _counter("gate_failures", "failures", "Gates that turned a rollout back.", "app", "pool", "gate")

ALL = (
    PLAN_INFO,
    KV_TOKENS_PREDICTED,
    KV_TOKENS_ACTUAL,
    KV_TOKENS_IN_USE,
    KV_TOKENS_RESERVED,
    KV_GROUPS,
    PLAN_DIFFERENCES,
    ACCEPTANCE_LENGTH,
    DRAFTS,
    ACCEPTED_TOKENS,
    PREEMPTIONS,
    REQUESTS,
    REJECTED,
    PLAN_REJECTIONS,
    PLANNER_STARTS,
    GENERATION,
    ROLLOUTS,
    GATE_FAILURES,
)


def table() -> str:
    """The table of `docs/metrics.md`."""
    lines = ["| name | type | unit | labels | meaning |", "|---|---|---|---|---|"]
    for metric in ALL:
        tags = ", ".join(metric.tags) or "none"
        lines.append(f"| `{metric.exported}` | {metric.kind} | {metric.unit} | {tags} | {metric.meaning} |")
    return "\n".join(lines)
