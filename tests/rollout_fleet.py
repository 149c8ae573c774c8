"""A simulated app under the planner's rollouts: replicas that obey orders, and a Ray Serve that binds and replaces."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from hybrid_serve.negotiation.store import MemoryStore
from hybrid_serve.rollout.host import Rollouts
from hybrid_serve.rollout.ledger import LedgerError
from hybrid_serve.rollout.turn import share
from hybrid_serve.rollout.wire import (
    FailedSwitch,
    Figures,
    GenerationOffer,
    PoolOffer,
    ReplicaPhase,
    ReplicaRun,
    RolloutOptions,
)
from tests.fleets import Clock

T = TypeVar("T")

APP = "app"
DRAIN_S = 1.0
SWITCH_S = 3.0
QUICK = RolloutOptions(bake_s=5.0, start_s=60.0)


def pool_offer(engine: str = "e1", placement: str = "p1", *, model: str = "m", k: int = 7) -> PoolOffer:
    return PoolOffer(
        model=model,
        config={"engine": engine, "placement": placement},
        engine_digest=engine,
        placement_digest=placement,
        plan_id=f"plan-{engine}",
        kv_tokens=1000,
        concurrency=4.0,
        num_speculative_tokens=k,
    )


def offer(digest: str, pools: dict[str, PoolOffer], built_at: float = 0.0, app: str = APP) -> GenerationOffer:
    return GenerationOffer(app=app, digest=digest, config={"name": digest}, pools=pools, built_at=built_at)


class PlannerKilled(BaseException):
    """The planner's process ended here."""


class PerilousStore(MemoryStore):
    """A store that can't be reached while `down`; and a planner that is killed at one of its next writes.

    Attributes:
        writes_left: writes until the planner is killed; None: it is not.
        written: the write that it is killed at still happens.
    """

    def __init__(self) -> None:
        super().__init__()
        self.down = False
        self.writes_left: int | None = None
        self.written = False

    def read(self, key: str) -> bytes | None:
        if self.down:
            raise ConnectionError("no control store")
        return super().read(key)

    def write(self, key: str, value: bytes) -> None:
        if self.down:
            raise ConnectionError("no control store")
        if self.writes_left is not None:
            self.writes_left -= 1
            if self.writes_left <= 0:
                self.writes_left = None
                if self.written:
                    super().write(key, value)
                raise PlannerKilled
        super().write(key, value)

    def delete(self, key: str) -> None:
        if self.down:
            raise ConnectionError("no control store")
        super().delete(key)


@dataclass
class Replica:
    """One replica process, and what its engine does."""

    name: str
    pool: str
    model: str
    digest: str
    phase: ReplicaPhase = "serving"
    until: float = 0.0
    to: str = ""
    old: str = ""
    down: bool = False
    failed: FailedSwitch | None = None
    dead: str = ""
    figures: Figures = field(default_factory=Figures)
    before: tuple[str, Figures] | None = None
    differences: tuple[str, ...] = ()
    mute: bool = False
    was_mute: bool = False
    hangs_since: float | None = None

    def run(self) -> ReplicaRun:
        return ReplicaRun(
            app=APP,
            model=self.model,
            pool=self.pool,
            digest=self.digest,
            phase=self.phase,
            figures=self.figures if self.phase == "serving" else None,
            before=self.before,
            differences=self.differences,
            dead=self.dead,
            failed=self.failed,
        )


@dataclass
class Deployment:
    """One deployment through Ray Serve that is on its way."""

    key: str
    offer: GenerationOffer
    restart: dict[str, str]
    until: float


@dataclass
class Serve:
    """Ray Serve as far as a rollout sees it, and the planner's `Applier`. A planner that dies takes its work along.

    Attributes:
        digests: what each pool's newcomers are made with, by pool.
        refused: generations that can't be deployed, by digest.
    """

    app: "SimulatedApp"
    bound: GenerationOffer
    versions: dict[str, str] = field(default_factory=dict)
    work: Deployment | None = None
    results: dict[str, str] = field(default_factory=dict)
    failures: int = 0
    has_the_app: bool = True
    digests: dict[str, str] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)
    deployments: list[tuple[str, dict[str, str]]] = field(default_factory=list)

    def start(self, app: str, key: str, offer: GenerationOffer, restart: dict[str, str]) -> None:
        if self.work is None and key not in self.results:
            self.work = Deployment(key, offer, restart, self.app.clock.now + 2)

    def ended(self, app: str) -> dict[str, str]:
        return dict(self.results)

    def settle(self, app: str, key: str) -> None:
        self.results.pop(key, None)

    def cancel(self, app: str) -> None:
        self.work, self.results = None, {}

    def planner_died(self) -> None:
        self.work, self.results = None, {}

    def advance(self) -> None:
        if self.work is not None and self.app.clock.now >= self.work.until:
            work, self.work = self.work, None
            refused = work.offer.digest in self.refused or self.app.control_store_is_down()
            if self.failures or refused or not self.has_the_app:
                self.failures = max(0, self.failures - 1)
                self.results[work.key] = "RuntimeError: no such deployment"
            else:
                self.apply(work.offer, work.restart)
                self.results[work.key] = ""
        self._replace_one()

    def deploy(self, offer: GenerationOffer, restart: dict[str, str]) -> None:
        """As it is told, by whomever."""
        self.deployments.append((offer.digest, restart))
        there = set(self.digests) if self.has_the_app else set()
        self.has_the_app, self.bound = True, offer
        self.digests = dict.fromkeys(offer.pools, offer.digest)
        self.versions.update(restart)
        self._start_and_stop(set(offer.pools) - there)

    def apply(self, offer: GenerationOffer, restart: dict[str, str]) -> None:
        """As `deployments.applying` does: who needs other resources and is not to be replaced stays as he is."""
        self.deployments.append((offer.digest, restart))
        there = set(self.digests)
        named = {pool for pool in offer.pools if pool in there or pool in restart}
        waiting = {pool for pool in there & named if pool not in restart and self._differs(pool, offer)}
        kept = {pool: digest for pool, digest in self.digests.items() if pool in waiting or pool not in offer.pools}
        whole = dict.fromkeys(offer.pools, offer.digest)
        self.digests = {**dict.fromkeys(named, offer.digest), **kept} if waiting else whole
        self.bound = offer
        self.versions.update(restart)
        self._start_and_stop(set(self.digests) - there)

    def _differs(self, pool: str, offer: GenerationOffer) -> bool:
        made_with = self.app.offers[self.digests[pool]].pools[pool]
        return made_with.placement_digest != offer.pools[pool].placement_digest

    def _start_and_stop(self, new: set[str]) -> None:
        for pool in sorted(new):
            self.app.add(pool, self.digests[pool])
        for replica in list(self.app.replicas.values()):
            if replica.pool not in self.digests:
                self.app.stop(replica.name)

    def _replace_one(self) -> None:
        """Its rolling update: one replica at a time that has not its deployment's version."""
        for replica in list(self.app.replicas.values()):
            wanted = self.versions.get(replica.pool, "")
            if self.app.version[replica.name] != wanted:
                self.app.stop(replica.name)
                self.app.add(replica.pool, self.digests[replica.pool])
                return


class SimulatedApp:
    """Time passes by `seconds`; every replica beats once a second, the planner ticks once a second."""

    def __init__(self, first: GenerationOffer, replicas: dict[str, int], store: MemoryStore | None = None) -> None:
        self.clock = Clock()
        self.store = MemoryStore() if store is None else store
        self.offers = {first.digest: first}
        self.replicas: dict[str, Replica] = {}
        self.version: dict[str, str] = {}
        self.cannot_start: set[tuple[str, str]] = set()
        self.serve = Serve(self, first, digests=dict.fromkeys(first.pools, first.digest))
        self.number = 0
        self.lost: list[float] = []
        self.worst = 0
        self.orders: list[tuple[str, str]] = []
        self.rollouts = Rollouts(self.store, self.clock, self.serve)
        self.planner_is_down = False
        self.rollouts.deployed(first)
        for pool, count in replicas.items():
            for _ in range(count):
                self.add(pool, first.digest, starting=False)
        self.seconds(2)

    # --- what happens to it

    def add(self, pool: str, digest: str, *, starting: bool = True) -> Replica:
        self.number += 1
        replica = Replica(f"{pool}#{self.number}", pool, self.offers[digest].pools[pool].model, digest)
        if starting:
            replica.phase, replica.until = "starting", self.clock.now + SWITCH_S
        self.replicas[replica.name] = replica
        self.version[replica.name] = self.serve.versions.get(pool, "")
        return replica

    def stop(self, name: str) -> None:
        """In order: it tells the planner."""
        self.kill(name)
        if not self.planner_is_down:
            self.rollouts.forget(name)

    def kill(self, name: str) -> None:
        """With SIGKILL."""
        if self.replicas.pop(name, None) is not None:
            self.lost.append(self.clock.now)

    def delete(self) -> None:
        """`serve delete`."""
        self.serve.has_the_app = False
        for name in list(self.replicas):
            self.stop(name)

    def deploy_anew(self, offer: GenerationOffer, replicas: dict[str, int]) -> int:
        """After `delete`. The number of its generation."""
        offer = replace(offer, built_at=self.clock.now)
        self.offers[offer.digest] = self.serve.bound = offer
        self.serve.has_the_app, self.serve.versions = True, {}
        self.serve.digests = dict.fromkeys(offer.pools, offer.digest)
        for pool, count in replicas.items():
            for _ in range(count):
                self.add(pool, offer.digest)
        return self.rollouts.deployed(offer)

    def restart_planner(self) -> None:
        self.serve.planner_died()
        self.rollouts = Rollouts(self.store, self.clock, self.serve)

    def alive(self, ask: Callable[[], T]) -> T | None:
        """What the planner answers; None if it is killed over it, and another one is there then."""
        try:
            return ask()
        except PlannerKilled:
            self.restart_planner()
            return None

    def begin(self, offer: GenerationOffer, options: RolloutOptions = QUICK) -> dict[str, Any]:
        self.offers[offer.digest] = offer
        return self.rollouts.begin(offer, options, "me", "a test")

    # --- time

    def seconds(self, count: float) -> None:
        for _ in range(int(count)):
            self.clock.now += 1
            self.serve.advance()
            for replica in list(self.replicas.values()):
                self._advance(replica)
                if not replica.mute and not self.planner_is_down:
                    self._beat(replica)
            if not self.planner_is_down:
                self.alive(self.rollouts.tick)
                if int(self.clock.now) % 5 == 0:
                    self.alive(self._look)
                self.rollouts.check_integrity()

    def until(self, phase: str, seconds: int = 600) -> None:
        for _ in range(seconds):
            if self.phase == phase:
                return
            self.seconds(1)
        raise AssertionError(f"it is {self.phase!r} after {seconds} s, not {phase!r}: {self.story()}")

    def _look(self) -> None:
        """As the planner does every few seconds. What it can't write it does again with the next look."""
        with suppress(LedgerError):
            for name in self.rollouts.unheard():
                if not self.serve.has_the_app:
                    self.rollouts.deleted(name)
            if self.serve.has_the_app and self.rollouts.was_deleted(APP):
                self.rollouts.deployed(self.serve.bound)

    def _beat(self, replica: Replica) -> None:
        order = self.rollouts.heartbeat(replica.name, True, replica.run()).run
        if order is None:
            return
        self.orders.append((replica.name, order))
        allowed = self.in_play()
        assert order in allowed, f"{replica.name} is ordered to {order}, in play are {allowed}{self.story()}"
        if replica.phase != "serving" or order == replica.digest:
            return
        replica.failed = None
        own, wanted = self.offers[replica.digest].pools[replica.pool], self.offers[order].pools[replica.pool]
        assert own.placement_digest == wanted.placement_digest, "no engine restart gives a replica other resources"
        if own.engine_digest == wanted.engine_digest:
            replica.digest = order
            return
        replica.to, replica.old, replica.down = order, replica.digest, bool(replica.dead)
        replica.phase, replica.until = "draining", self.clock.now + DRAIN_S
        self._check_unavailable(replica)

    def _advance(self, replica: Replica) -> None:
        if self.clock.now < replica.until:
            return
        if replica.phase == "draining":
            replica.phase, replica.until = "switching", self.clock.now + SWITCH_S
            replica.before, replica.figures = (replica.digest, replica.figures), Figures()
            replica.digest = replica.to
        elif replica.phase == "switching" and (replica.pool, replica.digest) in self.cannot_start:
            replica.failed = FailedSwitch(digest=replica.digest, reason="ValueError: no such drafter")
            replica.digest, replica.phase, replica.dead = replica.old, "serving", ""
        elif replica.phase in ("switching", "starting"):
            replica.phase, replica.dead, replica.hangs_since = "serving", "", None

    def _check_unavailable(self, ordered: Replica) -> None:
        """What our orders cost, at the moment when one more replica obeys. Who hangs is given up after a while."""
        away = sum(
            each.phase in ("draining", "switching") and not each.down and not each.was_mute and not self._hangs(each)
            for each in self.replicas.values()
        )
        recently = sum(self.clock.now - at <= 40 for at in self.lost)
        limit = max(1, share(self.options().max_unavailable, len(self.replicas) + recently, up=False))
        assert away <= limit, f"{away} replicas are without an engine by our orders, limit {limit}{self.story()}"
        self.worst = max(self.worst, away)
        others = [each for each in self.replicas.values() if each.model == ordered.model and each is not ordered]
        if others and not recently and not ordered.down and not self.options().allow_outage:
            assert any(each.phase == "serving" and not each.dead for each in others), (
                f"{ordered.name} was the last of its model that served{self.story()}"
            )

    def _hangs(self, replica: Replica) -> bool:
        """For as long as a start may take: it is counted among those that did not start."""
        return replica.hangs_since is not None and self.clock.now - replica.hangs_since >= self.options().start_s - 10

    # --- what is known

    def control_store_is_down(self) -> bool:
        """Ray Serve writes into the same one as the planner."""
        return isinstance(self.store, PerilousStore) and self.store.down

    def options(self) -> RolloutOptions:
        app = self.rollouts._ledger.apps[APP]
        latest = app.rollout or app.last
        return RolloutOptions() if latest is None else latest.options

    def in_play(self) -> set[str]:
        app = self.rollouts._ledger.apps[APP]
        found = {app.now_current.digest}
        if app.rollout is not None:
            found |= {app.generations[app.rollout.to].digest, app.generations[app.rollout.origin].digest}
        return found

    def shown(self) -> dict[str, Any]:
        found: dict[str, Any] = self.rollouts.rollouts(APP)[APP]
        return found

    @property
    def phase(self) -> str:
        """Of the active rollout; of the last one, how it ended; empty if there was none."""
        shown = self.shown()
        latest = shown["rollout"] or shown["last"]
        return latest["phase"] if latest else ""

    @property
    def failure(self) -> str:
        shown = self.shown()
        text: str = (shown["rollout"] or shown["last"])["failure"]
        return text

    def events(self) -> list[str]:
        return [event["event"] for event in self.rollouts.history(APP)]

    def is_settled(self) -> bool:
        """Nothing is left to do for anybody."""
        app = self.rollouts._ledger.apps[APP]
        calm = all(replica.phase == "serving" and not replica.dead for replica in self.replicas.values())
        return calm and app.rollout is None and not app.orders and self.served() <= {app.now_current.digest}

    def story(self) -> str:
        """The last events, for a test that fails."""
        last = self.rollouts.history(APP)[-25:]
        return "\n" + "\n".join(
            f"{event['at'][11:19]} {event['event']} {event.get('replica', '')} {event['reason']}" for event in last
        )

    def served(self) -> set[str]:
        """Generations that live replicas run, by digest."""
        return {replica.digest for replica in self.replicas.values()}
