"""Rollouts while replicas, engines, planners, the store and Ray Serve fail in any order: the end is one generation."""

import logging
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from hybrid_serve.rollout.ledger import LedgerError
from hybrid_serve.rollout.wire import GenerationOffer, PoolOffer, RolloutOptions
from tests.rollout_fleet import APP, PerilousStore, SimulatedApp, offer, pool_offer

MODELS = {"a": "m", "b": "m", "c": "n"}


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """The failures are made here by the thousand: what is logged of them tells nothing."""
    logger = logging.getLogger("hybrid_serve")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(before)


def pools_of(names: str, variant: int) -> dict[str, PoolOffer]:
    """Variant 0 to 7: a bit for another engine in the first pool, in the others, and for other resources."""
    found = {}
    for position, name in enumerate(names):
        engine = f"{name}{(variant >> min(position, 1)) & 1}"
        placement = f"p{variant >> 2}" if position == 0 else "p0"
        found[name] = pool_offer(engine, placement, model=MODELS[name])
    return found


GENERATIONS = {
    f"{names}{variant}{twin}": offer(f"{names}{variant}{twin}", pools_of(names, variant))
    for names in ("a", "ab", "abc")
    for variant in range(8)
    for twin in ("", "'")
}
OPTIONS = [
    RolloutOptions(canary=canary, bake_s=bake_s, max_unavailable=away, start_s=60.0, allow_outage=outage)
    for canary, bake_s in (("1", 5.0), ("0", 0.0), ("50%", 5.0))
    for away in ("1", "2", "50%")
    for outage in (True, False)
]
FATES = ["kill", "kill", "stop", "add", "add", "die", "die", "mute", "speak", "hang"]
EVENTS = ["starts", "ingress", "serve", "serves", "store", "stores", "planner", "write", "written", "away", "back"]
SECONDS = [0, 1, 2, 3, 5, 8, 13, 35]
seconds = st.sampled_from(SECONDS)
pools = st.sampled_from(["", "", "", "", "a", "ab", "abc"])
variants = st.sampled_from([0, 1, 1, 2, 2, 3, 3, 3, 4, 7])
twins = st.sampled_from(["", "'"])


class Rollouts(RuleBasedStateMachine):
    """The planner's own code over a store; the app, its replicas and Ray Serve are simulated."""

    @initialize(names=st.sampled_from(["a", "ab", "abc"]), counts=st.lists(st.integers(1, 3), min_size=3, max_size=3))
    def an_app(self, names: str, counts: list[int]) -> None:
        self.store = PerilousStore()
        self.names = names
        if len(names) > 1:
            counts = [min(count, 2) for count in counts]
        replicas = dict(zip(names, counts if len(names) < 3 else [*counts[:2], 1], strict=False))
        self.app = SimulatedApp(GENERATIONS[f"{names}0"], replicas, self.store)
        self.app.offers.update(GENERATIONS)
        self.untold: GenerationOffer | None = None
        self.deployed = 0

    @rule(names=pools, variant=variants, twin=twins, options=st.sampled_from(OPTIONS), then=seconds)
    def somebody_rolls_out(self, names: str, variant: int, twin: str, options: RolloutOptions, then: int) -> None:
        name = f"{names or self.names}{variant}{twin}"
        self.ask(lambda: self.app.begin(GENERATIONS[name], options))
        self.time_passes(then)

    @rule(to=st.sampled_from([None, None, None, 1, 2, 3]), then=seconds)
    def somebody_rolls_back(self, to: int | None, then: int) -> None:
        self.ask(lambda: self.app.rollouts.rollback(APP, to, "me", ""))
        self.time_passes(then)

    @rule(paused=st.booleans(), then=seconds)
    def somebody_pauses_or_resumes(self, paused: bool, then: int) -> None:
        self.ask(lambda: self.app.rollouts.pause(APP, paused, "me"))
        self.time_passes(then)

    @precondition(lambda self: self.untold is None and self.deployed < 2 and self.ray_serve_has_the_app())
    @rule(names=pools, variant=variants, twin=twins, then=seconds)
    def somebody_deploys_through_ray_serve(self, names: str, variant: int, twin: str, then: int) -> None:
        self.deploys(f"{names or self.names}{variant}{twin}")
        self.time_passes(then)

    @precondition(lambda self: self.ray_serve_has_the_app())
    @rule(sure=st.sampled_from([False, False, False, True]), then=seconds)
    def somebody_deletes_the_app(self, sure: bool, then: int) -> None:
        if sure:
            self.untold = None
            self.app.delete()
            self.time_passes(then)

    @precondition(lambda self: not self.app.serve.has_the_app and not self.store.down)
    @rule(names=pools, variant=variants, twin=twins, then=seconds)
    def somebody_deploys_it_again(self, names: str, variant: int, twin: str, then: int) -> None:
        self.deploys(f"{names or self.names}{variant}{twin}")
        self.time_passes(then)

    def ray_serve_has_the_app(self) -> bool:
        """And can be told something about it."""
        return self.app.serve.has_the_app and not self.store.down

    def deploys(self, name: str) -> None:
        """Through Ray Serve. Its replicas are new ones, all of them."""
        self.deployed += 1
        self.untold = replace(GENERATIONS[name], built_at=self.app.clock.now + self.deployed / 1000)
        self.app.serve.deploy(self.untold, {pool: f"deploy-{self.deployed}" for pool in self.untold.pools})
        self.the_ingress_tells()

    @rule(seconds=seconds)
    def time_passes(self, seconds: int) -> None:
        for _ in range(seconds):
            self.app.seconds(1)
            self.the_ingress_tells()

    @rule(
        what=st.sampled_from(FATES),
        number=st.integers(0, 4),
    )
    def a_replica_meets(self, what: str, number: int) -> None:
        app = self.app
        digests = app.serve.digests
        names = list(app.replicas)
        replica = app.replicas[names[number % len(names)]] if names else None
        if what == "add" and len(names) < 6 and app.serve.has_the_app:
            pool = sorted(digests)[number % len(digests)]
            app.add(pool, digests[pool])
        if replica is None:
            return
        if what == "kill":
            app.kill(replica.name)
            if replica.pool in digests:
                app.add(replica.pool, digests[replica.pool])
        elif what == "stop" and len(names) > 1:
            app.stop(replica.name)
        elif what == "die" and replica.phase == "serving":
            replica.dead = "EngineDeadError"
            app.lost.append(app.clock.now)
        elif what in ("mute", "speak"):
            replica.mute, replica.was_mute = what == "mute", True
            app.lost.append(app.clock.now)
        elif what == "hang" and replica.phase == "switching":
            replica.until, replica.hangs_since = app.clock.now + 100, app.clock.now
        self.time_passes(SECONDS[number])

    @rule(position=st.integers(0, 2), variant=variants, twin=twins)
    def a_generation_does_not_start_in_a_pool(self, position: int, variant: int, twin: str) -> None:
        pool = self.names[position % len(self.names)]
        self.app.cannot_start.add((pool, f"{self.names}{variant}{twin}"))

    @rule(
        what=st.sampled_from(EVENTS),
        then=seconds,
    )
    def something_goes_or_comes(self, what: str, then: int) -> None:
        app, store = self.app, self.store
        if what == "starts":
            app.cannot_start.clear()
        elif what == "ingress" and self.untold is None and app.serve.has_the_app:
            before = self.current()
            self.ask(lambda: app.rollouts.deployed(app.serve.bound))
            assert store.down or self.current() == before, "it told nothing new"
        elif what in ("serve", "serves"):
            app.serve.failures = 5 if what == "serve" else 1
        elif what in ("store", "stores"):
            store.down = what == "store"
        elif what == "planner":
            app.restart_planner()
        elif what in ("write", "written"):
            store.writes_left, store.written = 1 + then % 3, what == "written"
        elif what == "away":
            app.planner_is_down = True
        elif what == "back":
            self.planner_is_back()
        self.time_passes(then)

    def planner_is_back(self) -> None:
        if self.app.planner_is_down:
            self.app.restart_planner()
        self.app.planner_is_down = False

    @invariant()
    def what_is_written_is_what_holds(self) -> None:
        self.app.rollouts.check_integrity()

    def teardown(self) -> None:
        if not hasattr(self, "app"):
            return
        app = self.app
        app.cannot_start.clear()
        app.serve.failures, self.store.down, self.store.writes_left = 0, False, None
        self.planner_is_back()
        if not app.serve.has_the_app:
            self.time_passes(60)
            assert not app.rollouts.has_deployed(APP) and app.shown()["rollout"] is None, app.story()
            self.deploys(f"{self.names}0")
        for replica in list(app.replicas.values()):
            replica.mute = False
            if replica.dead:
                app.kill(replica.name)
                if replica.pool in app.serve.digests:
                    app.add(replica.pool, app.serve.digests[replica.pool])
        for _ in range(200):
            self.ask(lambda: app.rollouts.pause(APP, False, "me"))
            self.time_passes(10)
            if app.shown()["rollout"] is None and app.is_settled():
                break
        shown = app.shown()
        assert shown["rollout"] is None, app.story()
        current = next(each["digest"] for each in shown["generations"] if each["number"] == shown["current"])
        assert shown["bound"] == shown["current"] and app.serve.bound.digest == current, app.story()
        assert app.served() <= {current}, f"{app.served()}, current is {current}{app.story()}"
        assert all(replica.phase == "serving" for replica in app.replicas.values())
        app.rollouts.check_integrity()

    def ask(self, question: object) -> None:
        """Unless nobody is there to be asked."""
        if self.app.planner_is_down:
            return
        try:
            self.app.alive(question)  # type: ignore[arg-type]
        except LedgerError:
            assert self.store.down, "a store that is there can be written"

    def the_ingress_tells(self) -> None:
        if self.untold is not None and not self.app.planner_is_down:
            try:
                if self.app.alive(lambda: self.app.rollouts.deployed(self.untold)) is not None:  # type: ignore[arg-type]
                    self.untold = None
            except LedgerError:
                assert self.store.down, "a store that is there can be written"

    def current(self) -> int | None:
        return self.app.shown()["current"] if self.app.rollouts.rollouts(APP) else None


Rollouts.TestCase.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
TestRollouts = Rollouts.TestCase
