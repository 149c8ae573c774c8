"""What the planner counts for Prometheus."""

from hybrid_serve import metrics
from hybrid_serve.negotiation.offer import ReplicaOffer


class PlannerMetrics:
    """Counters of this planner process. Making one counts its start."""

    def __init__(self) -> None:
        self._rejections = metrics.PLAN_REJECTIONS.create()
        metrics.PLANNER_STARTS.create().inc()

    def rejected(self, offer: ReplicaOffer) -> None:
        """The offer got no plan."""
        self._rejections.inc(tags={"model": offer.model_name, "pool": offer.pool})
