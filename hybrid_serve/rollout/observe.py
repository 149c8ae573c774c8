"""What became of the orders that were given, and of the deployments that were begun."""

from dataclasses import replace

from hybrid_serve.rollout.ending import fail
from hybrid_serve.rollout.fleet import LOST_AFTER_S, Seen
from hybrid_serve.rollout.gates import Gate
from hybrid_serve.rollout.state import ApplyRun, Step
from hybrid_serve.rollout.turn import Trouble, Turn

RETRY_S = 60.0
"""Before a replica that could not start a generation is asked again."""
APPLY_RETRY_S = 5.0
APPLY_RETRY_LATER_S = 30.0
APPLY_ATTEMPTS = 4


def observe(turn: Turn) -> None:
    """Take up what was heard. What a gate has to judge is left in `turn.troubles`."""
    for replica_id, step in list(turn.orders.items()):
        seen = turn.view.replicas.get(replica_id)
        if seen is None:
            if turn.view.lost(replica_id, turn.now):
                del turn.orders[replica_id]
                _vanished(turn, replica_id, step)
        elif step.state != "serving":
            _looked_at(turn, replica_id, step, seen)
        elif seen.run.digest != step.digest:
            del turn.orders[replica_id]  # somebody else told it to
    if turn.app.rebind is not None:
        _rebind_ended(turn, turn.app.rebind)
    if turn.rollout is not None and not turn.rollout.apply_is_over:
        _apply_ended(turn)


def _looked_at(turn: Turn, replica_id: str, step: Step, seen: Seen) -> None:
    if seen.run.digest == step.digest and seen.serving and seen.heard_at > step.at:
        turn.orders[replica_id] = replace(step, state="serving", reason="")
        if turn.rollout is not None and turn.rollout.forward and step.digest != turn.to.digest:
            del turn.orders[replica_id]  # from before the rollout
        turn.event("serves", f"after {turn.now - step.at:.0f} s", replica=replica_id, pool=step.pool)
        return
    if step.state == "failed":
        return
    limit = _start_s(turn)
    why = seen.failure_of(step.digest, step.at)
    if not why and turn.now - max(step.at, turn.view.started_at) > limit:
        why = f"it did not serve within {limit:g} s and is {seen.run.phase}"
    if why:
        turn.orders[replica_id] = replace(step, state="failed", reason=why, at=turn.now)
        turn.event("could not switch", why, replica=replica_id, pool=step.pool)
        _trouble(
            turn, "replica start", step, f"replica {replica_id} did not start generation {_number(turn, step)}: {why}"
        )


def _vanished(turn: Turn, replica_id: str, step: Step) -> None:
    """A replica that went. Only one that was on its way to the new generation, or died on it, says anything of that."""
    gone = turn.view.gone.get(replica_id)
    how = "stopped" if gone is not None and gone.orderly else f"was not heard of for {LOST_AFTER_S:g} s"
    turn.event("is gone", how, replica=replica_id, pool=step.pool)
    number = _number(turn, step)
    if not step.restart or step.state == "failed":
        return
    if step.state == "ordered":
        begun = gone is None or gone.run.phase == "switching" or gone.run.digest == step.digest
        if begun:
            dead = f": {gone.run.dead}" if gone is not None and gone.run.dead else ""
            _trouble(turn, "replica start", step, f"replica {replica_id} {how} on its way to generation {number}{dead}")
    elif gone is not None and gone.orderly and gone.run.dead:
        _trouble(turn, "engine deaths", step, f"replica {replica_id} on generation {number}: {gone.run.dead}")
    elif gone is None or not gone.orderly:
        _trouble(turn, "engine deaths", step, f"replica {replica_id} on generation {number} {how}")


def _trouble(turn: Turn, gate: Gate, step: Step, text: str) -> None:
    if turn.rollout is not None and turn.rollout.forward and step.digest == turn.to.digest:
        turn.troubles.append(Trouble(gate, step.pool, text))


def _number(turn: Turn, step: Step) -> int | str:
    generation = turn.app.by_digest(step.digest)
    return step.digest if generation is None else generation.number


def _start_s(turn: Turn) -> float:
    rollout = turn.rollout or turn.app.last
    return 1800.0 if rollout is None else rollout.options.start_s


def _rebind_ended(turn: Turn, rebind: ApplyRun) -> None:
    error = turn.view.applied.get(rebind.key)
    if error is None:
        return
    turn.event("deployed again through Ray Serve" if not error else "could not be deployed again", error)
    if error:
        key = rebind.key.partition(" ")[0] + f" {rebind.failures + 1}"
        later = turn.now + APPLY_RETRY_LATER_S
        turn.app = replace(turn.app, rebind=replace(rebind, key=key, not_before=later, failures=rebind.failures + 1))
    else:
        turn.app = replace(turn.app, rebind=None, bound_at=max(turn.now, turn.app.bound_at))


def _apply_ended(turn: Turn) -> None:
    """A deployment that failed is tried again: a few times forward, without end on the way back."""
    rollout = turn.active
    apply = rollout.apply
    assert apply is not None, "it was looked at"
    error = turn.view.applied.get(apply.key)
    if error is None:
        return
    generation = turn.app.by_digest(apply.digest)
    assert generation is not None, "what is deployed is listed"
    if not error:
        turn.change(apply=replace(apply, done=True))
        bound_at = max(turn.now, generation.built_at)
        turn.app = replace(turn.app, bound=generation.number, bound_at=bound_at, rebind=None)
        turn.event("deployed through Ray Serve", f"generation {generation.number}")
        return
    failures = apply.failures + 1
    turn.event("could not be deployed", f"generation {generation.number}, attempt {failures}: {error}")
    if rollout.forward and failures >= APPLY_ATTEMPTS:
        fail(turn, f"Ray Serve did not take generation {generation.number} in {failures} attempts: {error}")
        return
    wait = APPLY_RETRY_S if failures < APPLY_ATTEMPTS else APPLY_RETRY_LATER_S
    turn.begin_apply(generation, apply.restart, turn.now + wait, failures)
