"""Rollouts as plain values, for tools."""

from dataclasses import asdict
from typing import Any

from hybrid_serve.facts.device import DeviceFacts
from hybrid_serve.rollout.evidence import verdicts
from hybrid_serve.rollout.fleet import FleetView, Seen
from hybrid_serve.rollout.state import App, Generation, Rollout
from hybrid_serve.rollout.turn import Turn, utc


def app_shown(app: App, view: FleetView, now: float) -> dict[str, Any]:
    """One app: where it is, and where it goes."""
    measured_ = {pool: [asdict(device) for device in devices] for pool, devices in measured(view).items()}
    turn = Turn(app, view, now)
    return {
        "deployed": app.deployed,
        "current": app.current,
        "bound": app.bound,
        "generations": [generation_shown(each) for each in app.generations.values()],
        "rollout": None if app.rollout is None else _active(turn),
        "last": None if app.last is None else _rollout(app.last),
        "replicas": [_replica(turn, name, seen) for name, seen in sorted(view.replicas.items())],
        "measured": measured_,
    }


def generation_shown(generation: Generation) -> dict[str, Any]:
    """One generation without its configuration."""
    pools = {
        name: {
            "plan_id": pool.plan_id,
            "kv_tokens": pool.kv_tokens,
            "concurrency": pool.concurrency,
            "num_speculative_tokens": pool.num_speculative_tokens,
            "model": pool.model,
        }
        for name, pool in generation.pools.items()
    }
    return {
        "number": generation.number,
        "digest": generation.digest,
        "state": generation.state,
        "created_at": utc(generation.created_at),
        "actor": generation.actor,
        "pools": pools,
    }


def measured(view: FleetView) -> dict[str, list[DeviceFacts]]:
    """Distinct devices by pool."""
    found: dict[str, list[DeviceFacts]] = {}
    for seen in view.replicas.values():
        devices = found.setdefault(seen.run.pool, [])
        if seen.run.device is not None and seen.run.device not in devices:
            devices.append(seen.run.device)
    return found


def _active(turn: Turn) -> dict[str, Any]:
    judged = [verdict.to_json() for verdict in verdicts(turn)] if turn.active.forward else list(turn.active.gates)
    steps = [_replica(turn, name, seen) for name, seen in sorted(turn.view.replicas.items())]
    return _rollout(turn.active) | {"gates": judged, "steps": steps}


def _rollout(rollout: Rollout) -> dict[str, Any]:
    return {
        "name": rollout.name,
        "from": rollout.origin,
        "to": rollout.to,
        "kind": rollout.kind,
        "phase": rollout.result or rollout.phase,
        "paused": rollout.paused,
        "wave": rollout.wave,
        "actor": rollout.actor,
        "reason": rollout.reason,
        "since": utc(rollout.since),
        "phase_since": utc(rollout.phase_since if rollout.ended_at is None else rollout.ended_at),
        "bake_s": rollout.options.bake_s,
        "replacing": list(rollout.replaced),
        "gates": list(rollout.gates),
        "steps": [],
        "failure": rollout.failure,
    }


def _replica(turn: Turn, name: str, seen: Seen) -> dict[str, Any]:
    """`state` is the order's, where there is one that is not fulfilled; otherwise the replica's own phase."""
    step = turn.orders.get(name)
    generation = turn.generation_of(seen)
    state = "dead" if seen.run.dead else seen.run.phase
    if step is not None and step.state != "serving" and state == "serving":
        state = step.state
    return {
        "replica": name,
        "pool": seen.run.pool,
        "state": state,
        "canary": step is not None and step.canary,
        "generation": None if generation is None else generation.number,
        "reason": "" if step is None else step.reason,
        "figures": None if seen.run.figures is None else asdict(seen.run.figures),
    }
