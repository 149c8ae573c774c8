"""One step of one app in the making: what it was, what was heard, what it becomes. No clock, no I/O."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from math import ceil
from typing import Any, Literal, NamedTuple

from hybrid_serve.rollout.fleet import FleetView, Seen
from hybrid_serve.rollout.gates import Gate
from hybrid_serve.rollout.state import App, ApplyRun, Event, Generation, Phase, Rollout, Step
from hybrid_serve.rollout.wire import RolloutOptions

Need = Literal["nothing", "adopt", "restart", "replace", "unknown"]
"""What a replica needs to run a generation: nothing, its name only, another engine, another replica; or nobody knows
what it runs now (Ray Serve may be bringing it in)."""


class Trouble(NamedTuple):
    """What an order ran into, for a gate to judge."""

    gate: Gate
    pool: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Apply:
    """Deploy the app through Ray Serve with this generation. Idempotent by key.

    Attributes:
        restart: the version of each deployment whose replicas must be new ones; the others keep theirs.
    """

    key: str
    digest: str
    restart: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a step makes of an app. Nothing of it holds before the app is written."""

    app: App
    commands: tuple[Apply, ...] = ()
    events: tuple[Event, ...] = ()


def share(text: str, of: int, *, up: bool) -> int:
    """`2` or `10%` of a number, the latter rounded up or down."""
    if not text.endswith("%"):
        return int(text)
    exact = float(text[:-1]) * of / 100
    return ceil(exact) if up else int(exact)


def utc(seconds: float) -> str:
    """ISO 8601, in UTC."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


def pool_need(origin: Generation, to: Generation, pool: str) -> Need:
    """What a replica of `origin` needs to run `to`, in a pool that one of them has."""
    own, wanted = origin.pools.get(pool), to.pools.get(pool)
    if own is None or wanted is None or own.placement_digest != wanted.placement_digest:
        return "replace"
    return "adopt" if own.engine_digest == wanted.engine_digest else "restart"


class Turn:
    """The app's orders and rollout, to be changed; everything else is read only."""

    def __init__(self, app: App, view: FleetView, now: float) -> None:
        self.before, self.view, self.now = app, view, now
        self.app = app
        self.rollout = app.rollout
        self.orders = dict(app.orders)
        self.commands: list[Apply] = []
        self.events: list[Event] = []
        self.troubles: list[Trouble] = []
        self._needs: dict[tuple[str, str, str], Need] = {}
        self._models: dict[str, set[str]] | None = None
        self._by_digest = {each.digest: each for each in app.generations.values()}

    def outcome(self) -> Outcome:
        app = self.app
        if self.orders != app.orders:
            app = replace(app, orders=self.orders)
        if self.rollout is not app.rollout and self.rollout != app.rollout:
            app = replace(app, rollout=self.rollout)
        return Outcome(app=app, commands=tuple(self.commands), events=tuple(self.events))

    @property
    def active(self) -> Rollout:
        assert self.rollout is not None, "there is a rollout"
        return self.rollout

    @property
    def origin(self) -> Generation:
        return self.app.generations[self.active.origin]

    @property
    def to(self) -> Generation:
        return self.app.generations[self.active.to]

    def change(self, **values: Any) -> None:
        self.rollout = replace(self.active, **values)

    def enter(self, phase: Phase, reason: str = "") -> None:
        self.change(phase=phase, phase_since=self.now, progress=0, progress_at=self.now)
        self.event(phase, reason)

    def event(self, event: str, reason: str = "", *, replica: str = "", pool: str = "", actor: str = "planner") -> None:
        rollout = self.rollout
        number = self.app.current if rollout is None else rollout.to
        self.events.append(event_of(self.app.name, self.now, event, number, rollout, reason, replica, pool, actor))

    # --- replicas

    def generation_of(self, seen: Seen) -> Generation | None:
        return self._by_digest.get(seen.run.digest)

    def need(self, seen: Seen, target: Generation) -> Need:
        key = (seen.run.digest, target.digest, seen.run.pool)
        if (found := self._needs.get(key)) is not None:
            return found
        own = self.generation_of(seen)
        if seen.run.digest == target.digest:
            found = "nothing"
        else:
            found = "unknown" if own is None else pool_need(own, target, seen.run.pool)
        self._needs[key] = found
        return found

    def needing(self, target: Generation, *needs: Need) -> Iterator[tuple[str, Seen]]:
        """Live replicas that need one of these and are not ordered it already, by id."""
        for replica_id, seen in sorted(self.view.replicas.items()):
            step = self.orders.get(replica_id)
            if step is not None and step.digest == target.digest and step.state != "serving":
                continue
            if self.need(seen, target) in needs:
                yield replica_id, seen

    def in_flight(self) -> int:
        """Replicas that our orders keep from serving, or may at any moment."""
        return sum(
            step.restart and step.state == "ordered" and not step.down and replica_id in self.view.replicas
            for replica_id, step in self.orders.items()
        )

    def slots(self, max_unavailable: str) -> int:
        return max(1, share(max_unavailable, len(self.view.replicas), up=False)) - self.in_flight()

    def leaves_the_model_served(self, replica_id: str, allow_outage: bool) -> bool:
        """Its model has another replica that serves and may go on; or it is the only one that the model has."""
        if self._models is None:
            self._models = {}
            for other, seen in self.view.replicas.items():
                members = self._models.setdefault(seen.run.model, set())
                if seen.serving and not self._leaving(other):
                    members.add(other)
        model = self.view.replicas[replica_id].run.model
        serving = self._models[model]
        if allow_outage or len(serving) > (replica_id in serving):
            return True
        return sum(seen.run.model == model for seen in self.view.replicas.values()) == 1

    def _leaving(self, replica_id: str) -> bool:
        step = self.orders.get(replica_id)
        return step is not None and step.restart and step.state == "ordered"

    def order_in_slots(self, target: Generation, options: RolloutOptions) -> int:
        """Order as many serving replicas as may be without an engine at once. How many those were."""
        slots = self.slots(options.max_unavailable)
        ordered = 0
        for replica_id, seen in list(self.needing(target, "restart")) if slots > 0 else []:
            if ordered < slots and seen.serving and self.leaves_the_model_served(replica_id, options.allow_outage):
                self.order(replica_id, seen, target, restart=True)
                ordered += 1
        return ordered

    def order(
        self,
        replica_id: str,
        seen: Seen,
        target: Generation,
        *,
        restart: bool,
        canary: bool = False,
        down: bool = False,
    ) -> None:
        pool = seen.run.pool
        if restart and self._models is not None:
            self._models[seen.run.model].discard(replica_id)
        self.orders[replica_id] = Step(
            pool=pool, digest=target.digest, at=self.now, restart=restart, canary=canary, down=down
        )
        how = "as a canary" if canary else ("with another engine" if restart else "without another engine")
        self.event(f"ordered to generation {target.number}", how, replica=replica_id, pool=pool)

    def adopt(self, target: Generation) -> None:
        """Whoever runs an equal engine takes the generation's name and the rest of its configuration at once.

        Not while that engine starts; and as one that may be without, if an order to restart it was not taken up yet.
        """
        for replica_id, seen in list(self.needing(target, "adopt")):
            begun = self.orders.get(replica_id)
            if begun is None or begun.state != "ordered" or not begun.restart:
                self.order(replica_id, seen, target, restart=False)
            elif seen.run.digest != begun.digest:
                self.order(replica_id, seen, target, restart=True, down=begun.down)

    # --- deployments through Ray Serve

    def begin_apply(self, target: Generation, restart: dict[str, str], not_before: float, failures: int = 0) -> None:
        rollout = self.active
        number = rollout.applies + 1
        bind_at = rollout.bind_at
        if bind_at is None and target.number == rollout.to:
            bind_at = self.now
        self.change(
            applies=number,
            bind_at=bind_at,
            apply=ApplyRun(
                key=f"{self.app.name}/{rollout.name}/{number}",
                digest=target.digest,
                restart=restart,
                not_before=not_before,
                failures=failures,
            ),
        )
        pools = f", pools {', '.join(sorted(restart))} with new replicas" if restart else ""
        self.event("deploys through Ray Serve", f"generation {target.number}{pools}")

    def applied(self, target: Generation) -> bool:
        """The last deployment that was begun is of this generation, and done."""
        apply = self.active.apply
        return apply is not None and apply.digest == target.digest and apply.done


def event_of(
    app: str,
    now: float,
    event: str,
    generation: int | None,
    rollout: Rollout | None,
    reason: str = "",
    replica: str = "",
    pool: str = "",
    actor: str = "planner",
) -> Event:
    about = {name: value for name, value in (("replica", replica), ("pool", pool)) if value}
    return {
        "at": utc(now),
        "app": app,
        "rollout": "" if rollout is None else rollout.name,
        "generation": generation,
        "actor": actor,
        "event": event,
        "reason": reason,
        **about,
    }
