"""Rollouts through the planner's own methods, with a deployment that is counted instead of done."""

import asyncio
from dataclasses import asdict, replace
from typing import Any

import pytest

from hybrid_serve.facts.device import DeviceFacts
from hybrid_serve.negotiation import planner as planner_module
from hybrid_serve.negotiation.planner import Planner
from hybrid_serve.negotiation.store import MemoryStore
from hybrid_serve.rollout.applier import BackgroundApplier
from hybrid_serve.rollout.wire import GenerationOffer, ReplicaRun, RolloutOptions
from tests.rollout_fleet import APP, offer, pool_offer

OLD = offer("old", {"a": pool_offer("a1")})
NEW = offer("new", {"a": pool_offer("a2", k=5)})
GPU = DeviceFacts(kind="cuda", name="NVIDIA H200", memory_bytes=1)
OPTIONS = RolloutOptions(canary="0", bake_s=0.0)


class Deployments:
    """Stands for Ray Serve; fails as often as it is told to."""

    def __init__(self, failures: int = 0) -> None:
        self.failures = failures
        self.done: list[str] = []

    async def __call__(self, offer: GenerationOffer, restart: dict[str, str]) -> None:
        await asyncio.sleep(0)
        if self.failures:
            self.failures -= 1
            raise RuntimeError("Ray Serve is away\nmore")
        self.done.append(offer.digest)


@pytest.fixture(autouse=True)
def quick_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner_module, "TICK_S", 0.005)


async def served(planner: Planner, replicas: dict[str, str]) -> None:
    """Replicas that switch at once, until the rollout has ended."""
    async with asyncio.timeout(10):
        while True:
            for name, digest in replicas.items():
                run = ReplicaRun(app=APP, model="m", pool="a", digest=digest, phase="serving", device=GPU)
                order = await planner.heartbeat(name, "i", run)
                replicas[name] = order.run or digest
            await asyncio.sleep(0.01)
            if (await planner.rollouts(APP))[APP]["rollout"] is None:
                return


async def test_a_rollout_through_the_planner() -> None:
    deployments = Deployments()
    planner = Planner(apply=deployments)
    assert await planner.deployed(OLD) == await planner.deployed(OLD) == 1
    replicas = {"r1": "old", "r2": "old"}
    await served(planner, replicas)
    assert await planner.begin(NEW, OPTIONS, "me") == {"started": "rollout-1", "generation": 2}
    assert (await planner.pause(APP, "me"))["paused"] == (await planner.resume(APP, "me"))["resumed"] == "rollout-1"
    assert await planner.begin(NEW, OPTIONS, "me") == {"attached": "rollout-1"}
    await served(planner, replicas)
    assert set(replicas.values()) == {"new"} and deployments.done == ["new"]
    shown = (await planner.rollouts())[APP]
    assert (shown["current"], shown["bound"], shown["last"]["phase"]) == (2, 2, "done")
    assert shown["measured"] == {"a": [asdict(GPU)]}
    assert await planner.measured(APP) == {"a": [GPU]}
    assert (await planner.generation(APP))["config"] == {"name": "new"}
    assert (await planner.generation(APP, 1))["pools"]["a"]["num_speculative_tokens"] == 7
    assert await planner.pool_config(APP, "old", "a") == OLD.pools["a"].config
    assert [event["event"] for event in await planner.history(APP)][-1] == "done"
    assert await planner.history("other") == [] and await planner.rollouts("other") == {}
    assert (await planner.rollback(APP, None, "me"))["generation"] == 1
    await served(planner, replicas)
    assert set(replicas.values()) == {"old"}
    assert (await planner.status())["integrity"] == ""


async def test_what_is_not_known_is_told_with_what_is() -> None:
    planner = Planner(apply=Deployments())
    with pytest.raises(ValueError, match="app app is not known; known: none"):
        await planner.generation(APP)
    assert await planner.rollback(APP, None, "me") == {"refused": "app app is not known; known: none"}
    await planner.deployed(OLD)
    with pytest.raises(ValueError, match="app has no generation 7; it has 1"):
        await planner.generation(APP, 7)


async def test_replicas_without_a_generation_are_left_alone() -> None:
    planner = Planner(apply=Deployments())
    await planner.deployed(OLD)
    order = await planner.heartbeat("r1", "i")
    assert (order.known, order.run, order.again_s) == (False, None, 5.0)
    run = ReplicaRun(app=APP, model="m", pool="a", digest="", phase="serving")
    await asyncio.sleep(0.05)
    assert (await planner.heartbeat("r1", "i", run)).run is None


async def test_a_planner_that_was_restarted_hears_from_its_fleet_before_it_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hybrid_serve.rollout.host.SETTLE_S", 0.3)
    store = MemoryStore()
    await Planner(store, apply=Deployments()).deployed(OLD)
    planner = Planner(store, apply=Deployments())
    asked = asyncio.ensure_future(planner.begin(NEW, OPTIONS, "me"))
    run = ReplicaRun(app=APP, model="m", pool="a", digest="old", phase="serving")
    await planner.heartbeat("r1", "i", run)
    assert not asked.done()
    assert "model m has 1 replica in all" in (await asked)["refused"]


async def test_an_app_that_ray_serve_does_not_have_is_looked_for_before_anything_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    async def is_deployed(app: str) -> bool:
        asked.append(app)
        return False

    planner = Planner(apply=Deployments(), is_deployed=is_deployed)
    await planner.deployed(OLD)
    replicas = {"r1": "old"}
    await served(planner, replicas)
    assert await planner.begin(OLD, OPTIONS, "me") == {"unchanged": 1} and asked == [], "a replica lives"
    await planner.forget("r1")
    assert "app app is not deployed" in (await planner.begin(NEW, OPTIONS, "me"))["refused"] and asked == [APP]
    assert "app app is not deployed" in (await planner.rollback(APP, None, "me"))["refused"]
    assert await planner.deployed(replace(OLD, built_at=1.0)) == 1
    monkeypatch.setattr(planner_module, "LOOK_PERIOD_S", 0.005)
    again = Planner(apply=Deployments(), is_deployed=is_deployed)
    await again.deployed(OLD)
    async with asyncio.timeout(10):
        while (await again.rollouts(APP))[APP]["deployed"]:
            await asyncio.sleep(0.01)


async def test_an_app_that_is_there_again_is_found_before_anything_begins() -> None:
    there: dict[str, GenerationOffer] = {}

    async def is_deployed(app: str) -> bool:
        return app in there

    async def bound_to(app: str) -> GenerationOffer | None:
        return there.get(app)

    planner = Planner(apply=Deployments(), is_deployed=is_deployed, bound_to=bound_to)
    await planner.deployed(OLD)
    for ask in (lambda: planner.begin(OLD, OPTIONS, "me"), lambda: planner.rollback(APP, 1, "me")):
        there.clear()
        answer = await ask()
        assert "app app is not deployed" in answer["refused"] and answer["deployed"] is False
        there[APP] = replace(NEW, built_at=2.0)
        assert (await ask())["started"]
        shown = (await planner.rollouts(APP))[APP]
        assert shown["deployed"] and shown["current"] == shown["bound"] == 2, "what it is bound to now counts"


async def test_what_is_told_as_known_counts_only_for_an_app_that_is_taken_for_deleted() -> None:
    there: list[bool | Exception] = [False]

    async def is_deployed(app: str) -> bool:
        if isinstance(there[0], Exception):
            raise there[0]
        return there[0]

    planner = Planner(apply=Deployments(), is_deployed=is_deployed)
    await planner.deployed(OLD)
    assert await planner.deployed(replace(NEW, built_at=9.0), True) is None, "a rollout may be about to deploy it"
    assert "is not deployed" in (await planner.begin(NEW, OPTIONS, "me"))["refused"]
    for unsure in (False, ConnectionError("no controller")):
        there[0] = unsure
        assert await planner.deployed(NEW, True) is None, "an ingress may outlive its app for a while"
        assert not (await planner.rollouts(APP))[APP]["deployed"]
    there[0] = True
    assert await planner.deployed(NEW, True) == 2
    shown = (await planner.rollouts(APP))[APP]
    assert shown["deployed"] and shown["current"] == 2


async def test_a_rollout_begins_though_it_can_not_be_told_whether_its_app_is_deployed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def away(app: str) -> bool:
        raise ConnectionError("no controller")

    for planner in (Planner(apply=Deployments(), is_deployed=away), Planner(apply=Deployments())):
        await planner.deployed(OLD)
        assert (await planner.begin(NEW, OPTIONS, "me"))["started"] == "rollout-1"
    assert "no controller" in caplog.text and "not connected to Ray" in caplog.text


async def test_a_deployment_runs_once_and_is_cancelled_for_the_next(caplog: pytest.LogCaptureFixture) -> None:
    told: list[str] = []

    async def apply(offer: GenerationOffer, restart: dict[str, str]) -> None:
        told.append(f"{offer.digest} begins")
        try:
            await asyncio.sleep(60 if offer is NEW else 0)
        except asyncio.CancelledError:
            told.append(f"{offer.digest} is cancelled")
            raise

    applier = BackgroundApplier(apply)
    for _ in range(3):
        applier.start(APP, "k1", NEW, {})
        await asyncio.sleep(0.01)
    assert told == ["new begins"] and applier.ended(APP) == {}
    for _ in range(3):
        applier.start(APP, "k2", OLD, {})
        await asyncio.sleep(0.01)
    assert told == ["new begins", "new is cancelled", "old begins"]
    assert applier.ended(APP) == {"k2": ""}
    applier.settle(APP, "k2")
    assert applier.ended(APP) == {}


async def test_the_deployment_of_a_deleted_app_is_cancelled_and_its_keys_are_forgotten() -> None:
    deployments = Deployments()
    applier = BackgroundApplier(deployments)
    applier.start(APP, "k", NEW, {})
    applier.cancel(APP)
    await asyncio.sleep(0.01)
    assert deployments.done == [] and applier.ended(APP) == {}
    for _ in range(2):
        applier.start(APP, "k", NEW, {})
        await asyncio.sleep(0.01)
    assert deployments.done == ["new"] and applier.ended(APP) == {"k": ""}
    applier.cancel(APP)
    applier.settle(APP, "k")
    applier.start(APP, "k", NEW, {})
    await asyncio.sleep(0.01)
    assert deployments.done == ["new", "new"], "the app is back, and its rollouts are counted anew"


async def test_a_deployment_that_fails_says_why_in_a_line() -> None:
    applier = BackgroundApplier(Deployments(failures=1))
    applier.start(APP, "k", NEW, {})
    await asyncio.sleep(0.01)
    assert applier.ended(APP) == {"k": "Ray Serve is away"}


async def test_an_error_in_one_app_stops_no_other(caplog: pytest.LogCaptureFixture) -> None:
    planner = Planner(apply=Deployments())
    await planner.deployed(OLD)
    await planner.deployed(replace(OLD, app="other"))
    ledger: Any = planner._rollouts._ledger
    ledger._apps[APP] = replace(ledger._apps[APP], current=99)
    replicas = {"r1": "old"}
    run = ReplicaRun(app="other", model="m", pool="a", digest="old", phase="serving")
    for name in replicas:
        await planner.heartbeat(name, "i", run)
    await asyncio.sleep(0.05)
    assert "the rollout of app could not go on" in caplog.text
    assert ledger._apps["other"].generations[1].proven
