"""The rollout's state machine: an app, what its replicas told, and a moment; out come the app as it is to be written,
and what is to be done once it is. Pure, so that a planner that restarts goes on from what is written.

    canary -> baking -> rolling -> replacing -> applying -> done
         \\________\\________\\__________\\__________\\__-> rolling back -> reverting -> rolled back
"""

from hybrid_serve.rollout.backward import backward
from hybrid_serve.rollout.fleet import FleetView, Seen
from hybrid_serve.rollout.forward import forward
from hybrid_serve.rollout.observe import observe
from hybrid_serve.rollout.state import App
from hybrid_serve.rollout.steady import steady
from hybrid_serve.rollout.turn import Apply, Outcome, Turn


def step(app: App, view: FleetView, now: float) -> Outcome:
    """The app one moment later. Nothing changes before the planner has listened long enough to know the fleet."""
    turn = Turn(app, view, now)
    if view.settled:
        observe(turn)
        if turn.rollout is None:
            steady(turn)
        elif turn.rollout.forward:
            forward(turn)
        if turn.rollout is not None and not turn.rollout.forward:
            backward(turn)
    _command(turn)
    return turn.outcome()


def _command(turn: Turn) -> None:
    """The deployment that is to run now; told at every step, until it is known how it ended.

    A rebinding goes first. One that failed makes way for what a rollout deploys: that binds the whole app, and gives
    new replicas to the pools that were to get them.
    """
    rebind = turn.app.rebind
    apply = turn.rollout.apply if turn.rollout is not None and not turn.rollout.apply_is_over else None
    restart: dict[str, str] = {}
    if rebind is not None and (apply is None or not rebind.failures):
        apply = rebind
    elif rebind is not None and turn.rollout is not None:
        restart = dict.fromkeys(rebind.restart, f"{turn.rollout.name}-after")
    if apply is not None and turn.now >= apply.not_before:
        turn.commands.append(Apply(key=apply.key, digest=apply.digest, restart=restart | apply.restart))


def order_for(app: App, replica_id: str, seen: Seen) -> str | None:
    """The generation that a replica is to be told to run; None: as it is. From what is written alone."""
    ordered = app.orders.get(replica_id)
    if ordered is None or ordered.state != "ordered" or seen.run.digest == ordered.digest:
        return None
    return None if seen.failure_of(ordered.digest, ordered.at) else ordered.digest
