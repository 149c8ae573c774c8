"""What the planner counts of rollouts for Prometheus."""

from hybrid_serve import metrics
from hybrid_serve.rollout.state import App


class RolloutMetrics:
    """Metrics of this planner process."""

    def __init__(self) -> None:
        self._generation = metrics.GENERATION.create()
        self._rollouts = metrics.ROLLOUTS.create()
        self._gates = metrics.GATE_FAILURES.create()

    def shows(self, app: App) -> None:
        """The gauge must be set again and again, or Ray forgets it, as it should of an app that was deleted."""
        if app.deployed:
            self._generation.set(app.current, tags={"app": app.name})

    def happened(self, before: App | None, now: App) -> None:
        """What is written now, and was not before."""
        if before is None:
            return
        if now.last is not None and now.last != before.last:
            self._rollouts.inc(tags={"app": now.name, "result": str(now.last.result)})
        was, then = before.rollout, now.rollout or now.last
        if was is not None and was.forward and then is not None and then.name == was.name and not then.forward:
            for verdict in then.gates:
                if verdict["state"] == "failed":
                    self._gates.inc(tags={"app": now.name, "pool": verdict["pool"], "gate": verdict["gate"]})
