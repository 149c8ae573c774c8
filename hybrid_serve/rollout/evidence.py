"""What the gates are shown of a rollout that is on its way."""

from hybrid_serve.rollout.fleet import Seen
from hybrid_serve.rollout.gates import Evidence, Gate, Verdict, added, judge, judge_start, since
from hybrid_serve.rollout.turn import Turn, pool_need
from hybrid_serve.rollout.wire import Figures

NOTHING = Figures()


def verdicts(turn: Turn) -> tuple[Verdict, ...]:
    """Every gate of every pool whose engines change, or that an order ran into trouble in."""
    members: dict[str, list[tuple[str, Seen]]] = {}
    for replica_id, seen in turn.view.replicas.items():
        members.setdefault(seen.run.pool, []).append((replica_id, seen))
    changed = {pool for pool in turn.to.pools if pool_need(turn.origin, turn.to, pool) != "adopt"}
    found: list[Verdict] = []
    for pool in sorted(changed | {trouble.pool for trouble in turn.troubles} & set(turn.to.pools)):
        evidence = _pool(turn, pool, members.get(pool, []))
        if turn.active.kind == "rollback":
            found += judge_start(evidence)
        else:
            found += judge(evidence, turn.active.options.gates)
    return tuple(found)


def _pool(turn: Turn, pool: str, members: list[tuple[str, Seen]]) -> Evidence:
    rollout, origin, to = turn.active, turn.origin, turn.to
    baseline = rollout.baseline or {}
    new = [(name, seen) for name, seen in members if seen.run.digest == to.digest and seen.run.phase == "serving"]
    old = [(name, seen) for name, seen in members if seen.run.digest == origin.digest]
    befores = [seen.run.before[1] for _, seen in new if seen.run.before and seen.run.before[0] == origin.digest]
    baking = rollout.phase in ("canary", "baking")
    lasted = turn.now - rollout.phase_since if rollout.phase == "baking" else 0.0
    bake_s = rollout.options.bake_s
    return Evidence(
        pool=pool,
        old_k=origin.pools[pool].num_speculative_tokens if pool in origin.pools else 0,
        new_k=to.pools[pool].num_speculative_tokens,
        new=added(seen.run.figures or NOTHING for _, seen in new),
        new_span=added(since(seen.run.figures or NOTHING, baseline.get(name)) for name, seen in new),
        old_span=added(since(seen.run.figures or NOTHING, baseline.get(name)) for name, seen in old),
        before=added(befores),
        not_started=_troubles(turn, pool, "replica start"),
        differences=tuple(f"replica {name}: {text}" for name, seen in new for text in seen.run.differences),
        deaths=_troubles(turn, pool, "engine deaths")
        + tuple(
            f"replica {name} on generation {to.number}: {seen.run.dead}"
            for name, seen in members
            if seen.run.digest == to.digest and seen.run.dead
        ),
        early=rollout.phase == "canary" or (rollout.phase == "baking" and lasted < bake_s / 2),
        baking=baking,
        over=rollout.phase not in ("canary", "baking") or (rollout.phase == "baking" and lasted >= 2 * bake_s),
    )


def _troubles(turn: Turn, pool: str, gate: Gate) -> tuple[str, ...]:
    return tuple(trouble.text for trouble in turn.troubles if (trouble.pool, trouble.gate) == (pool, gate))
