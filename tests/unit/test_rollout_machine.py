"""Rollouts while replicas, engines, planners, the store and Ray Serve fail in any order: the end is one generation."""

import logging
from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from hybrid_serve.rollout.ledger import LedgerError
from hybrid_serve.rollout.wire import GenerationOffer, PoolOffer, RolloutOptions
from tests.rollout_fleet import APP, PerilousStore, SimulatedApp, offer, pool_offer

logging.getLogger("hybrid_serve").setLevel(logging.CRITICAL)

MODELS = {"a": "m", "b": "m", "c": "n"}


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
some_generation = st.sampled_from([*(name for name in GENERATIONS if len(name) > 3), *GENERATIONS])
OPTIONS = [
    RolloutOptions(canary=canary, bake_s=bake_s, max_unavailable=away, start_s=60.0, allow_outage=outage)
    for canary, bake_s in (("1", 5.0), ("0", 0.0), ("50%", 5.0))
    for away in ("1", "2", "50%")
    for outage in (True, False)
]


class Rollouts(RuleBasedStateMachine):
    """The planner's own code over a store; the app, its replicas and Ray Serve are simulated."""

    @initialize(names=st.sampled_from(["a", "ab", "abc"]), counts=st.lists(st.integers(1, 2), min_size=3, max_size=3))
    def an_app(self, names: str, counts: list[int]) -> None:
        self.store = PerilousStore()
        replicas = dict(zip(names, counts, strict=False))
        self.app = SimulatedApp(GENERATIONS[f"{names}0"], replicas, self.store)
        self.app.offers.update(GENERATIONS)
        self.untold: GenerationOffer | None = None
        self.deployed = 0

    @rule(name=some_generation, options=st.sampled_from(OPTIONS))
    def somebody_rolls_out(self, name: str, options: RolloutOptions) -> None:
        self.ask(lambda: self.app.begin(GENERATIONS[name], options))

    @rule(to=st.sampled_from([None, None, 1, 2, 3]))
    def somebody_rolls_back(self, to: int | None) -> None:
        self.ask(lambda: self.app.rollouts.rollback(APP, to, "me", ""))

    @rule(paused=st.booleans())
    def somebody_pauses_or_resumes(self, paused: bool) -> None:
        self.ask(lambda: self.app.rollouts.pause(APP, paused, "me"))

    @precondition(lambda self: self.untold is None)
    @rule(name=some_generation)
    def somebody_deploys_through_ray_serve(self, name: str) -> None:
        self.deployed += 1
        self.untold = replace(GENERATIONS[name], built_at=self.app.clock.now + self.deployed / 1000)
        self.app.serve.deploy(self.untold, {pool: f"deploy-{self.deployed}" for pool in self.untold.pools})
        self.the_ingress_tells()

    @rule()
    def the_ingress_starts_again(self) -> None:
        if self.untold is None:
            bound = self.app.serve.bound
            before = self.current()
            self.ask(lambda: self.app.rollouts.deployed(bound))
            assert self.app.store.down or self.current() == before, "it told nothing new"

    @rule(seconds=st.sampled_from([1, 1, 2, 3, 5, 12, 35]))
    def time_passes(self, seconds: int) -> None:
        for _ in range(seconds):
            self.app.seconds(1)
            self.the_ingress_tells()

    @rule(number=st.integers(0, 4))
    def a_replica_is_killed(self, number: int) -> None:
        if (name := self.chosen(number)) is not None:
            pool = self.app.replicas[name].pool
            self.app.kill(name)
            if pool in self.app.serve.bound.pools:
                self.app.add(pool, self.app.serve.bound.digest)

    @rule(number=st.integers(0, 4))
    def a_replica_is_scaled_down(self, number: int) -> None:
        if (name := self.chosen(number)) is not None and len(self.app.replicas) > 1:
            self.app.stop(name)

    @precondition(lambda self: len(self.app.replicas) < 5)
    @rule(pool=st.sampled_from("abc"))
    def a_replica_is_added(self, pool: str) -> None:
        if pool in self.app.serve.bound.pools:
            self.app.add(pool, self.app.serve.bound.digest)

    @rule(number=st.integers(0, 4))
    def an_engine_dies(self, number: int) -> None:
        if (name := self.chosen(number)) is not None and self.app.replicas[name].phase == "serving":
            self.app.replicas[name].dead = "EngineDeadError"
            self.app.lost.append(self.app.clock.now)

    @rule(number=st.integers(0, 4))
    def a_replica_falls_silent_or_speaks_again(self, number: int) -> None:
        if (name := self.chosen(number)) is not None:
            self.app.replicas[name].mute = not self.app.replicas[name].mute
            self.app.lost.append(self.app.clock.now)

    @rule(pool=st.sampled_from("abc"), name=some_generation)
    def a_generation_does_not_start_in_a_pool(self, pool: str, name: str) -> None:
        self.app.cannot_start.add((pool, name))

    @rule()
    def a_replica_hangs_while_it_switches(self) -> None:
        for replica in self.app.replicas.values():
            if replica.phase == "switching":
                replica.until = self.app.clock.now + 100
                return

    @rule()
    def every_generation_starts_again(self) -> None:
        self.app.cannot_start.clear()

    @rule(failures=st.sampled_from([1, 3, 5]))
    def ray_serve_fails(self, failures: int) -> None:
        self.app.serve.failures = failures

    @rule(down=st.booleans())
    def the_store_goes_or_comes(self, down: bool) -> None:
        self.store.down = down

    @rule()
    def the_planner_is_killed(self) -> None:
        self.app.restart_planner()

    @rule(writes=st.integers(1, 4), written=st.booleans())
    def the_planner_is_killed_at_a_write(self, writes: int, written: bool) -> None:
        self.store.writes_left, self.store.written = writes, written

    @rule(down=st.booleans())
    def the_planner_is_away_or_back(self, down: bool) -> None:
        if self.app.planner_is_down and not down:
            self.app.restart_planner()
        self.app.planner_is_down = down

    @invariant()
    def what_is_written_is_what_holds(self) -> None:
        self.app.rollouts.check_integrity()

    def teardown(self) -> None:
        if not hasattr(self, "app"):
            return
        app = self.app
        app.cannot_start.clear()
        app.serve.failures, self.store.down, self.store.writes_left = 0, False, None
        self.the_planner_is_away_or_back(down=False)
        for replica in list(app.replicas.values()):
            replica.mute = False
            if replica.dead:
                app.kill(replica.name)
                app.add(replica.pool, app.serve.bound.digest) if replica.pool in app.serve.bound.pools else None
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

    def chosen(self, number: int) -> str | None:
        names = list(self.app.replicas)
        return names[number % len(names)] if names else None


Rollouts.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestRollouts = Rollouts.TestCase
