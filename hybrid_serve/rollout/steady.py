"""Without a rollout: who runs another generation than the current one is brought to it."""

from dataclasses import replace

from hybrid_serve.rollout.observe import RETRY_S
from hybrid_serve.rollout.turn import Turn
from hybrid_serve.rollout.wire import RolloutOptions

SERVE_DEPLOYS_S = 300.0
"""After a deployment through Ray Serve, which brings new replicas itself: so long nobody else's engine is restarted."""


def steady(turn: Turn) -> None:
    """Newcomers that were bound with an older generation, and replicas that were away."""
    if not turn.app.deployed:
        if not turn.view.replicas:
            return
        turn.app = replace(turn.app, deployed=True)
        turn.event("app is deployed", "its replicas are heard of again", actor="Ray Serve")
    app = turn.app
    current = app.now_current
    for replica_id, step in list(turn.orders.items()):
        if (
            step.digest != current.digest
            or step.state == "serving"
            or (step.state == "failed" and turn.now - step.at >= RETRY_S)
        ):
            del turn.orders[replica_id]
    turn.adopt(current)
    if not app.by_serve or turn.now - (current.current_at or 0.0) >= SERVE_DEPLOYS_S:
        turn.order_in_slots(current, RolloutOptions() if app.last is None else app.last.options)
    if not current.proven:
        known = [seen for seen in turn.view.replicas.values() if turn.generation_of(seen) is not None]
        if known and all(seen.serving and seen.run.digest == current.digest for seen in known):
            generations = app.generations | {current.number: replace(current, proven=True)}
            turn.app = replace(app, generations=generations)
