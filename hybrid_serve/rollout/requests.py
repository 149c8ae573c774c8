"""What people and Ray Serve ask of an app. Pure: each gives the outcome to write, or the text of a refusal."""

from collections import Counter
from dataclasses import replace

from hybrid_serve.rollout.ending import fail, finish
from hybrid_serve.rollout.fleet import FleetView
from hybrid_serve.rollout.forward import first_phase
from hybrid_serve.rollout.state import App, ApplyRun, Generation, Kind, Rollout
from hybrid_serve.rollout.turn import Outcome, Turn, event_of, pool_need
from hybrid_serve.rollout.wire import GenerationOffer, RolloutOptions

BY_SERVE = "deployed by Ray Serve, without gates"


def begin(
    app: App,
    to: Generation,
    *,
    kind: Kind,
    options: RolloutOptions,
    actor: str,
    reason: str,
    view: FleetView,
    now: float,
) -> Outcome | str:
    """A rollout to a generation, which the app may not list yet. The app has no other one."""
    if not options.allow_outage and kind == "rollout" and (refused := _outage(app, to, view)):
        return refused
    generations = app.generations | {to.number: replace(to, state="rolling out")}
    turn = Turn(replace(app, generations=generations), view, now)
    turn.rollout = Rollout(
        name=f"rollout-{app.rollouts + 1}",
        origin=app.current,
        to=to.number,
        kind=kind,
        phase="rolling",
        options=options,
        actor=actor,
        reason=reason,
        since=now,
        phase_since=now,
        progress_at=now,
    )
    turn.app = replace(turn.app, rollouts=app.rollouts + 1)
    turn.event(f"{kind} begins", reason, actor=actor)
    turn.enter(first_phase(turn))
    return turn.outcome()


def turn_back(app: App, actor: str, reason: str, view: FleetView, now: float) -> Outcome:
    """The active rollout rolls back because somebody says so."""
    turn = Turn(app, view, now)
    fail(turn, f"rolled back by {actor}" + (f": {reason}" if reason else ""), actor=actor)
    return turn.outcome()


def pause(app: App, paused: bool, actor: str, view: FleetView, now: float) -> Outcome:
    """Stop, or go on with, the steps forward of the active rollout."""
    turn = Turn(app, view, now)
    turn.change(paused=paused)
    turn.event("paused" if paused else "resumed", actor=actor)
    return turn.outcome()


def first_deployed(name: str, generation: Generation, now: float) -> Outcome:
    """An app that was not known before."""
    generation = replace(generation, state="current", current_at=now)
    app = App(
        name=name,
        generations={generation.number: generation},
        current=generation.number,
        bound=generation.number,
        bound_at=generation.built_at,
    )
    return Outcome(app=app, events=(event_of(name, now, BY_SERVE, generation.number, None, actor="Ray Serve"),))


def deleted(app: App, view: FleetView, now: float) -> Outcome:
    """Ray Serve has no such app any more: nothing is on its way, and nobody is to run anything."""
    turn = Turn(app, view, now)
    why = f"Ray Serve has no app {app.name} any more"
    if turn.rollout is None:
        turn.event("app deleted", why, actor="Ray Serve")
    else:
        turn.change(failure=f"{turn.active.failure}; {why}" if turn.active.failure else why)
        finish(turn, "app deleted")
    turn.app = replace(turn.app, bound=turn.app.current, rebind=None, deployed=False)
    turn.orders = {}
    return turn.outcome()


def deployed(app: App, generation: Generation, view: FleetView, now: float) -> Outcome:
    """Ray Serve was told to deploy a generation, which the app may not list yet, by somebody else than a rollout."""
    turn = Turn(app if app.deployed else replace(app, last=None), view, now)
    rebind = _rebind(app, generation, now)
    if turn.rollout is not None:
        turn.change(failure=f"Ray Serve deployed generation {generation.number}")
        finish(turn, "superseded")
    app = turn.app
    generations = dict(app.generations)
    if app.current != generation.number:
        left = generations[app.current]
        generations[app.current] = replace(left, state="good" if left.proven else "replaced")
    generations[generation.number] = replace(generation, state="current", current_at=now)
    turn.app = replace(
        app,
        generations=generations,
        current=generation.number,
        bound=generation.number,
        bound_at=generation.built_at,
        by_serve=True,
        rebind=rebind,
        deployed=True,
    )
    turn.orders = {}
    turn.event(BY_SERVE, actor="Ray Serve")
    return turn.outcome()


def _rebind(app: App, generation: Generation, now: float) -> ApplyRun | None:
    """What was being deployed when the generation was may have been deployed over it: it is deployed once more.

    That was the active rollout, or the rebinding after an earlier one. Replicas that either made new ones of are made
    new once more, by a version that no deployment had.
    """
    rollout, former = app.rollout, app.rebind
    pools: set[str] = set()
    key = ""
    if former is not None:
        key = f"{former.key.partition(' ')[0]}+"
        pools |= former.restart.keys()
    if rollout is not None and rollout.bind_at is not None:
        key = f"{rollout.name}/over"
        pools |= set(rollout.replaced)
    if not key:
        return None
    # Pools that it has not are named too: a generation after it may have them again.
    versions = dict.fromkeys(sorted(pools), key.replace("/", "-"))
    return ApplyRun(key=key, digest=generation.digest, restart=versions, not_before=now)


def is_news(app: App, offer: GenerationOffer) -> bool:
    """Ray Serve is bound to something that the app does not know of.

    A rollout that deploys the app makes its ingress tell what it was deployed with, too: of the generation that is
    being deployed that is no news, whatever the offer's time. What was made before the last binding is stale.
    """
    rollout = app.rollout
    if not app.deployed:
        return True
    if offer.digest == app.generations[app.bound].digest:
        return False
    if rollout is not None and rollout.bind_at is not None:
        deploying = rollout.apply.digest if rollout.apply is not None else ""
        if offer.digest in (deploying, app.generations[rollout.to].digest):
            return False
    return offer.built_at > app.bound_at


def other_is_active(app: App) -> str:
    """Why nothing else can begin."""
    rollout = app.rollout
    assert rollout is not None, "one is active"
    return (
        f"{rollout.name} of {app.name} to generation {rollout.to} is {rollout.phase}"
        f"{' (paused)' if rollout.paused else ''}, begun by {rollout.actor}"
    )


def not_deployed(name: str) -> str:
    """Why nothing can begin, and what to do."""
    return (
        f"app {name} is not deployed: Ray Serve has no such app any more. Deploy it first, and roll out then: "
        f"serve run deployments:app --name {name} config=FILE, or serve deploy FILE"
    )


def rollback_options(app: App) -> RolloutOptions:
    """Those of the last rollout, without canaries and bake."""
    options = RolloutOptions() if app.last is None else app.last.options
    return replace(options, canary="0", bake_s=0.0)


def last_good(app: App) -> Generation | None:
    """The one that was current last, of those that were left in good health."""
    good = [each for each in app.generations.values() if each.state == "good" and each.current_at is not None]
    return max(good, key=lambda each: each.current_at or 0.0, default=None)


def _outage(app: App, to: Generation, view: FleetView) -> str:
    """Why replicas can't restart one after the other with their models served throughout; empty if they can."""
    origin = app.now_current
    restarted: dict[str, set[str]] = {}
    for name, pool in origin.pools.items():
        if name in to.pools and pool_need(origin, to, name) != "adopt":
            restarted.setdefault(pool.model, set()).add(name)
    count = Counter(seen.run.model for seen in view.replicas.values())
    alone = {seen.run.model: seen.run.pool for seen in view.replicas.values() if count[seen.run.model] == 1}
    for model, name in sorted(alone.items()):
        if name in restarted.get(model, ()):
            return (
                f"model {model} has 1 replica in all, in pool {name}, and generation {to.number} restarts it: the "
                "model would not be served meanwhile; add a replica (2 are needed), or say --allow-outage"
            )
    return ""
