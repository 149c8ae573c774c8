"""How a rollout turns back, and how it ends."""

from dataclasses import replace

from hybrid_serve.rollout.gates import Verdict
from hybrid_serve.rollout.state import GenerationState, Result
from hybrid_serve.rollout.turn import Turn


def fail(turn: Turn, why: str, verdicts: tuple[Verdict, ...] = (), *, actor: str = "planner") -> None:
    """Roll back from here on. What the orders said so far does not hold any more."""
    turn.change(failure=why, paused=False, gates=tuple(verdict.to_json() for verdict in verdicts))
    for replica_id in list(turn.orders):
        if turn.orders[replica_id].state != "ordered":
            del turn.orders[replica_id]
    if turn.active.apply is not None and not turn.active.apply.done:
        turn.change(apply=None)  # it may yet come through, and is deployed over then
    turn.change(phase="rolling back", phase_since=turn.now)
    turn.event("rolling back", why, actor=actor)


def finish(turn: Turn, result: Result) -> None:
    """The rollout has ended: one generation is the current one from here on."""
    rollout, app = turn.active, turn.app
    generations = dict(app.generations)
    if result == "done":
        left: GenerationState = "good" if rollout.kind == "rollout" else "rolled back"
        generations[rollout.origin] = replace(generations[rollout.origin], state=left)
        generations[rollout.to] = replace(generations[rollout.to], state="current", current_at=turn.now, proven=True)
    else:
        left = "rolled back" if result == "rolled back" else "replaced"
        generations[rollout.to] = replace(generations[rollout.to], state=left)
    turn.event(result, rollout.failure or rollout.reason)
    turn.app = replace(
        app,
        generations=generations,
        current=rollout.to if result == "done" else app.current,
        by_serve=False,
        rollout=None,
        last=replace(rollout, result=result, ended_at=turn.now, baseline=None, apply=None),
    )
    turn.rollout = None
    turn.orders = {}
