"""From a generation that did not do back to the one before: everybody, in waves."""

from hybrid_serve.rollout.ending import finish
from hybrid_serve.rollout.observe import RETRY_S
from hybrid_serve.rollout.turn import Turn


def backward(turn: Turn) -> None:
    """One step of the way back."""
    rollout, origin = turn.active, turn.origin
    _order_back(turn)
    waiting = _on_the_way(turn)
    if rollout.phase == "rolling back" and not waiting:
        if rollout.bind_at is None:
            finish(turn, "rolled back")
            return
        turn.enter("reverting")
        versions = {pool: f"{rollout.name}-back" for pool in rollout.replaced}
        turn.begin_apply(origin, versions, turn.now)
    if turn.active.phase == "reverting" and turn.applied(origin):
        replaced = [seen for seen in turn.view.replicas.values() if turn.need(seen, origin) == "replace"]
        if not waiting and not replaced:
            finish(turn, "rolled back")


def _order_back(turn: Turn) -> None:
    rollout, origin = turn.active, turn.origin
    for replica_id, step in list(turn.orders.items()):
        if step.state == "failed" and turn.now - step.at >= RETRY_S:
            del turn.orders[replica_id]
    turn.adopt(origin)
    wanted = list(turn.needing(origin, "restart"))
    for replica_id, seen in wanted:
        begun = turn.orders.get(replica_id)
        if begun is not None and begun.state == "ordered" and begun.restart:
            turn.order(replica_id, seen, origin, restart=True, down=begun.down)
        elif seen.run.dead or seen.run.phase not in ("serving", "starting"):  # who starts takes orders once it serves
            turn.order(replica_id, seen, origin, restart=True, down=True)
    # An order that was not taken up is taken back; until the replica is heard of again it may have been.
    for replica_id, step in list(turn.orders.items()):
        if step.state == "ordered" and step.digest != origin.digest and replica_id in turn.view.replicas:
            seen = turn.view.replicas[replica_id]
            if turn.need(seen, origin) == "nothing":
                turn.order(replica_id, seen, origin, restart=step.restart, down=step.down)
    turn.order_in_slots(origin, rollout.options)


def _on_the_way(turn: Turn) -> bool:
    """Somebody that can be ordered back is not there yet."""
    origin = turn.origin
    if any(step.state == "ordered" and replica_id in turn.view.replicas for replica_id, step in turn.orders.items()):
        return True
    return any(turn.need(seen, origin) in ("adopt", "restart") for seen in turn.view.replicas.values())
