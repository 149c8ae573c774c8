"""From one generation to the next: canaries, a bake, waves, new replicas, and what Ray Serve binds newcomers with."""

from hybrid_serve.rollout.ending import fail, finish
from hybrid_serve.rollout.evidence import verdicts
from hybrid_serve.rollout.fleet import Seen
from hybrid_serve.rollout.gates import Verdict
from hybrid_serve.rollout.state import Phase, Step
from hybrid_serve.rollout.turn import Turn, pool_need, share
from hybrid_serve.rollout.wire import Figures

QUIET_S = 60.0
"""A pool that Ray Serve replaced and that has no replica for so long is one without load."""


def forward(turn: Turn) -> None:
    """One step forward, or the turn back if a gate failed."""
    _take_in_newcomers(turn)
    judged = verdicts(turn)
    if failed := [verdict for verdict in judged if verdict.state == "failed"]:
        for verdict in failed:
            turn.event("gate failed", verdict.text, pool=verdict.pool)
        fail(turn, failed[0].text, judged)
        return
    if _somebody_is_silent(turn):
        return
    entered: Phase | None = None
    while turn.rollout is not None and turn.rollout.forward and not turn.rollout.paused:
        if turn.rollout.phase == entered:
            return
        entered = turn.rollout.phase
        _PHASES[entered](turn, judged)


def first_phase(turn: Turn) -> Phase:
    """Where a rollout begins: without anything to restart, with what Ray Serve takes in place."""
    needs = {pool_need(turn.origin, turn.to, pool) for pool in turn.to.pools}
    if "restart" in needs:
        return "rolling" if turn.active.kind == "rollback" or _no_canary(turn) else "canary"
    return "replacing" if "replace" in needs else "applying"


def _take_in_newcomers(turn: Turn) -> None:
    """Who serves the new generation without an order was bound with it: from now on it is one that is watched."""
    for replica_id, seen in turn.view.replicas.items():
        if replica_id not in turn.orders and seen.serving and seen.run.digest == turn.to.digest:
            pool = seen.run.pool
            if pool in turn.to.pools and pool_need(turn.origin, turn.to, pool) != "adopt":
                turn.orders[replica_id] = Step(
                    pool=pool, digest=turn.to.digest, at=turn.now, restart=True, state="serving"
                )


def _somebody_is_silent(turn: Turn) -> bool:
    """A replica that served the new generation does not now, and may turn out to be lost."""
    seen = turn.view.replicas
    return any(
        step.restart and step.state == "serving" and replica_id in seen and not seen[replica_id].serving
        for replica_id, step in turn.orders.items()
    )


def _no_canary(turn: Turn) -> bool:
    return share(turn.active.options.canary, 100, up=True) == 0


def _canary(turn: Turn, judged: tuple[Verdict, ...]) -> None:
    if _order_canaries(turn):
        return
    if any(step.canary for step in turn.orders.values()):
        turn.enter("baking", f"{turn.active.options.bake_s:g} s")
        turn.change(baseline=_totals(turn))
    else:
        turn.enter("rolling", "no replica to be a canary")


def _order_canaries(turn: Turn) -> bool:
    """Order those that are missing. False once every pool has its own, serving."""
    options = turn.active.options
    missing = turn.in_flight() > 0
    slots = turn.slots(options.max_unavailable)
    waiting: dict[str, list[tuple[str, Seen]]] = {}
    for replica_id, seen in turn.needing(turn.to, "restart"):
        if seen.serving:
            waiting.setdefault(seen.run.pool, []).append((replica_id, seen))
    for pool, candidates in sorted(waiting.items()):
        have = sum(step.canary and step.pool == pool for step in turn.orders.values())
        members = len(candidates) + sum(step.pool == pool for step in turn.orders.values())
        wanted = min(members, share(options.canary, members, up=True))
        for replica_id, seen in candidates[: max(0, wanted - have)]:
            missing = True
            if slots > 0 and turn.leaves_the_model_served(replica_id, options.allow_outage):
                turn.order(replica_id, seen, turn.to, restart=True, canary=True)
                slots -= 1
    return missing


def _baking(turn: Turn, judged: tuple[Verdict, ...]) -> None:
    if _order_canaries(turn):
        turn.enter("canary", "a canary is gone, another takes its place")
        return
    lasted, bake_s = turn.now - turn.active.phase_since, turn.active.options.bake_s
    waiting = [verdict for verdict in judged if verdict.state == "waiting"]
    if lasted < bake_s or (waiting and lasted < 2 * bake_s):
        return
    for verdict in (each for each in judged if each.state == "not judged"):
        turn.event("not judged", verdict.text, pool=verdict.pool)
    turn.change(gates=tuple(verdict.to_json() for verdict in judged))
    turn.enter("rolling", f"baked for {lasted:.0f} s")


def _rolling(turn: Turn, judged: tuple[Verdict, ...]) -> None:
    turn.adopt(turn.to)
    if turn.in_flight():
        return
    if not any(seen.serving for _, seen in turn.needing(turn.to, "restart")):
        needs = {pool_need(turn.origin, turn.to, pool) for pool in turn.to.pools}
        turn.enter("replacing" if "replace" in needs else "applying")
        return
    if turn.order_in_slots(turn.to, turn.active.options):
        turn.change(wave=turn.active.wave + 1, baseline=turn.active.baseline or _totals(turn))


def _replacing(turn: Turn, judged: tuple[Verdict, ...]) -> None:
    """A pool at a time, by Ray Serve's own rolling update."""
    turn.adopt(turn.to)
    rollout = turn.active
    if rollout.replaced and not _replaced(turn, rollout.replaced[-1]):
        return
    left = [
        pool
        for pool in sorted(turn.to.pools)
        if pool not in rollout.replaced and pool_need(turn.origin, turn.to, pool) == "replace"
    ]
    if not left:
        turn.enter("applying")
        turn.change(apply=None)
        return
    turn.change(replaced=(*rollout.replaced, left[0]), progress=0, progress_at=turn.now)
    turn.begin_apply(turn.to, _versions(turn), turn.now)


def _replaced(turn: Turn, pool: str) -> bool:
    """Every replica of the pool is a new one that serves. If no further one comes up in time, its gate fails."""
    rollout, to = turn.active, turn.to
    members = [seen for seen in turn.view.replicas.values() if seen.run.pool == pool]
    serve = sum(seen.serving and seen.run.digest == to.digest for seen in members)
    if serve and serve == len(members) and turn.applied(to):
        return True
    if serve != rollout.progress:
        turn.change(progress=serve, progress_at=turn.now)
        return False
    since = turn.now - rollout.progress_at
    if not members and since > QUIET_S and turn.applied(to):
        turn.event("has no replica", f"pool {pool} is deployed, and none was heard of", pool=pool)
        return True
    limit = rollout.options.start_s
    if since > limit:
        text = (
            f"pool {pool}: replica start: {serve} of {len(members)} replicas serve generation {to.number}, and no more "
            f"for {limit:g} s"
        )
        fail(turn, text, (Verdict(pool=pool, gate="replica start", state="failed", text=text),))
    return False


def _applying(turn: Turn, judged: tuple[Verdict, ...]) -> None:
    apply = turn.active.apply
    if apply is None:
        turn.begin_apply(turn.to, _versions(turn), turn.now)
        return
    if not apply.done:
        return
    turn.adopt(turn.to)
    # Some came up meanwhile, bound with the old generation.
    turn.order_in_slots(turn.to, turn.active.options)
    ordered = any(step.state == "ordered" and name in turn.view.replicas for name, step in turn.orders.items())
    late = any(
        seen.serving and turn.need(seen, turn.to) in ("adopt", "restart") for seen in turn.view.replicas.values()
    )
    if not ordered and not late:
        finish(turn, "done")


def _versions(turn: Turn) -> dict[str, str]:
    return {pool: f"{turn.active.name}-to" for pool in turn.active.replaced}


def _totals(turn: Turn) -> dict[str, Figures]:
    return {name: seen.run.figures for name, seen in turn.view.replicas.items() if seen.run.figures is not None}


_PHASES = {
    "canary": _canary,
    "baking": _baking,
    "rolling": _rolling,
    "replacing": _replacing,
    "applying": _applying,
}
