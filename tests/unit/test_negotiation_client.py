"""A replica's side: it starts whether or not there is a planner, and keeps the planner informed."""

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from hybrid_serve.negotiation import client
from hybrid_serve.negotiation.answers import agreement_with, answer_to
from hybrid_serve.negotiation.offer import ReplicaOffer
from hybrid_serve.negotiation.planner import Planner
from hybrid_serve.negotiation.store import MemoryStore
from hybrid_serve.rollout.wire import Order, ReplicaRun
from tests.fleets import RETRAINED, fleet_of, offer_of, problem, report_of

FLEET = fleet_of({"big": problem(80), "small": problem(6)})


class Method:
    """Stands for an actor's method: `.remote(...)` gives something to await."""

    def __init__(self, name: str, handle: "Handle") -> None:
        self._name, self._handle = name, handle

    async def remote(self, *args: Any) -> Any:
        await asyncio.sleep(self._handle.delay_s)
        self._handle.calls.append(self._name)
        if self._handle.planner is None:
            raise ConnectionError("the actor died\nmore")
        return await getattr(self._handle.planner, self._name)(*args)


class Handle:
    """Stands for the actor's handle, in front of a real Planner; None is a planner that is dead."""

    def __init__(self, planner: Planner | None, delay_s: float = 0.0) -> None:
        self.planner, self.delay_s = planner, delay_s
        self.calls: list[str] = []
        self.lookups = 0

    def look_up(self) -> "Handle":
        self.lookups += 1
        return self

    def __getattr__(self, name: str) -> Method:
        return Method(name, self)


@pytest.fixture
def offer() -> ReplicaOffer:
    return offer_of(FLEET, "big")


@pytest.fixture(autouse=True)
def no_handle_is_kept(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(client, "_handle", None)
    yield


def with_planner(monkeypatch: pytest.MonkeyPatch, planner: Planner | None, delay_s: float = 0.0) -> Handle:
    handle = Handle(planner, delay_s)
    monkeypatch.setattr(client, "planner_handle", handle.look_up)
    return handle


async def replicas(planner: Planner) -> list[dict[str, Any]]:
    status = await planner.status()
    assert status["integrity"] == ""
    found: list[dict[str, Any]] = status["replicas"]
    return found


async def test_the_planner_answers_and_is_told(offer: ReplicaOffer, monkeypatch: pytest.MonkeyPatch) -> None:
    planner = Planner()
    with_planner(monkeypatch, planner)
    answer = await client.negotiate(offer)
    assert answer.source == "planner" and answer.note == ""
    reporter = client.Reporter(offer, answer)
    assert await reporter.beat()
    assert [replica["state"] for replica in await replicas(planner)] == ["offered"]
    assert await reporter.started(report_of(answer))
    assert [replica["state"] for replica in await replicas(planner)] == ["running"]
    reporter.begin()
    await reporter.stop()
    assert await replicas(planner) == []


async def test_a_heartbeat_carries_no_report_unless_the_planner_wants_it(
    offer: ReplicaOffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = with_planner(monkeypatch, Planner())
    answer = await client.negotiate(offer)
    reporter = client.Reporter(offer, answer)
    await reporter.started(report_of(answer))
    handle.calls.clear()
    for _ in range(3):
        assert await reporter.beat()
    assert handle.calls == ["heartbeat"] * 3
    handle.planner = Planner()
    assert await reporter.beat() and await reporter.beat()
    assert handle.calls[3:] == ["heartbeat", "report", "heartbeat"]
    assert [replica["state"] for replica in await replicas(handle.planner)] == ["running"]


async def test_a_report_that_was_lost_is_sent_with_the_next_heartbeat(
    offer: ReplicaOffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    planner = Planner()
    handle = with_planner(monkeypatch, planner)
    answer = await client.negotiate(offer)
    reporter = client.Reporter(offer, answer)
    await reporter.beat()
    handle.planner = None
    assert not await reporter.started(report_of(answer)) and not await reporter.beat()
    handle.planner = planner
    assert await reporter.beat()
    assert [replica["state"] for replica in await replicas(planner)] == ["running"]


class Ordering(Planner):
    """Answers each heartbeat with `order`, and remembers what it was told."""

    def __init__(self, order: Order) -> None:
        super().__init__()
        self.order = order
        self.runs: list[ReplicaRun | None] = []

    async def heartbeat(self, replica_id: str, incarnation: str, run: ReplicaRun | None = None) -> Order:
        self.runs.append(run)
        known = (await super().heartbeat(replica_id, incarnation, run)).known
        return replace(self.order, known=known)

    async def pool_config(self, app: str, digest: str, pool: str) -> Any:
        if (app, digest) != ("default", "g1"):
            raise ValueError(f"app {app} has no generation {digest}")
        return {"pool": pool}


RUN = ReplicaRun(app="default", model="seed", pool="big", digest="g0", phase="serving")


async def test_a_heartbeat_tells_what_the_replica_does_and_brings_an_order(
    offer: ReplicaOffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    planner = Ordering(Order(known=True, run="g1", drain_s=7.0))
    with_planner(monkeypatch, planner)
    orders: list[Order] = []

    async def run() -> ReplicaRun:
        return RUN

    reporter = client.Reporter(offer, await client.negotiate(offer), run=run, on_order=orders.append)
    assert await reporter.beat() and await reporter.beat()
    assert planner.runs == [RUN, RUN]
    assert [(order.known, order.run, order.drain_s) for order in orders] == [(False, "g1", 7.0), (True, "g1", 7.0)]
    assert [replica["state"] for replica in await replicas(planner)] == ["offered"]


async def test_a_replica_that_can_not_say_what_it_does_still_says_that_it_lives(
    offer: ReplicaOffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    planner = Ordering(Order(known=True))
    with_planner(monkeypatch, planner)

    async def run() -> ReplicaRun:
        raise LookupError("figures")

    reporter = client.Reporter(offer, await client.negotiate(offer), run=run)
    assert await reporter.beat() and planner.runs == [None]


async def test_a_new_engine_is_a_new_incarnation_with_its_own_report(
    offer: ReplicaOffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    planner = Planner()
    handle = with_planner(monkeypatch, planner)
    reporter = client.Reporter(offer, await client.negotiate(offer))
    await reporter.started(report_of(reporter._answer))
    assert await reporter.beat()
    other = fleet_of({"big": problem(80, num_speculative_tokens=3)})
    again = offer_of(other, "big")
    answer = await client.negotiate(again)
    incarnations = {reporter.incarnation}
    handle.calls.clear()
    reporter.offered(again, answer)
    incarnations.add(reporter.incarnation)
    assert await reporter.beat()
    assert [(each["state"], each["generation"]) for each in await replicas(planner)] == [("offered", other.generation)]
    assert await reporter.started(report_of(answer))
    incarnations.add(reporter.incarnation)
    assert await reporter.beat() and handle.calls == ["heartbeat", "report", "report", "heartbeat"]
    (entry,) = await replicas(planner)
    assert (entry["state"], entry["plan_id"]) == ("running", answer.decision.plan and answer.decision.plan.plan_id)
    assert len(incarnations) == 3


async def test_news_are_told_at_once(offer: ReplicaOffer, monkeypatch: pytest.MonkeyPatch) -> None:
    handle = with_planner(monkeypatch, Ordering(Order(known=True, again_s=60)))
    reporter = client.Reporter(offer, await client.negotiate(offer), period_s=60)
    reporter.begin()
    for beats in (1, 2, 3):
        async with asyncio.timeout(5):
            while handle.calls.count("heartbeat") < beats:
                await asyncio.sleep(0.01)
        reporter.beat_soon()
    await reporter.stop()


async def test_a_planner_that_is_away_is_asked_again_at_the_replicas_own_pace(
    offer: ReplicaOffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = with_planner(monkeypatch, None)
    reporter = client.Reporter(offer, await client.negotiate(offer), period_s=0.01)
    reporter.begin()
    async with asyncio.timeout(5):
        while handle.calls.count("heartbeat") < 5:
            await asyncio.sleep(0.01)
    await reporter.stop()


async def test_a_pools_configuration_is_fetched_or_it_is_said_why_not(monkeypatch: pytest.MonkeyPatch) -> None:
    handle = with_planner(monkeypatch, Ordering(Order(known=True)))
    assert await client.pool_config("default", "g1", "big") == {"pool": "big"}
    with pytest.raises(ValueError, match="no generation g2"):
        await client.pool_config("default", "g2", "big")
    handle.planner = None
    with pytest.raises(client.PlannerUnreachable, match="the actor died"):
        await client.pool_config("default", "g1", "big")
    handle.delay_s = 5
    with pytest.raises(client.PlannerUnreachable, match=r"no answer in 0\.05 s"):
        await client.pool_config("default", "g1", "big", timeout_s=0.05)


async def test_heartbeats_go_on_in_the_background_when_the_planner_wishes_it(
    offer: ReplicaOffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = with_planner(monkeypatch, Ordering(Order(known=True, again_s=0.01)))
    answer = await client.negotiate(offer)
    reporter = client.Reporter(offer, answer, period_s=60)
    reporter.begin()
    async with asyncio.timeout(5):
        while handle.calls.count("heartbeat") < 5:
            await asyncio.sleep(0.01)
    await reporter.stop()
    await reporter.stop()
    after = len(handle.calls)
    await asyncio.sleep(0.15)
    assert len(handle.calls) == after and handle.calls.count("forget") == 1


async def test_the_handle_is_looked_up_once_and_again_after_a_failure(
    offer: ReplicaOffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    planner = Planner()
    handle = with_planner(monkeypatch, planner)
    reporter = client.Reporter(offer, await client.negotiate(offer))
    for _ in range(3):
        await reporter.beat()
    assert handle.lookups == 1
    handle.planner = None
    await reporter.beat()
    handle.planner = planner
    await reporter.beat()
    assert handle.lookups == 2


async def test_an_unreachable_planner_means_a_local_plan_that_says_so(
    offer: ReplicaOffer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def unreachable() -> Handle:
        raise ConnectionError("no control store at 127.0.0.1\nmore")

    monkeypatch.setattr(client, "planner_handle", unreachable)
    with caplog.at_level(logging.WARNING):
        answer = await client.negotiate(offer)
    assert answer.source == "local" and answer.refusal == ""
    assert answer.note == "planner unreachable: no control store at 127.0.0.1"
    assert answer == answer_to(offer, agreement_with(offer), "local", answer.note)
    assert "plans for itself" in caplog.text
    assert not await client.Reporter(offer, answer).beat()


async def test_a_local_plan_is_reconciled_when_the_planner_is_back(
    offer: ReplicaOffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = with_planner(monkeypatch, None)
    answer = await client.negotiate(offer)
    reporter = client.Reporter(offer, answer)
    assert not await reporter.started(report_of(answer))
    planner = handle.planner = Planner()
    assert await reporter.beat()
    (replica,) = await replicas(planner)
    assert replica["state"] == "running" and replica["note"].startswith("planned locally, reconciled")


async def test_a_replica_is_refused_without_a_planner_too(monkeypatch: pytest.MonkeyPatch) -> None:
    with_planner(monkeypatch, None)
    answer = await client.negotiate(offer_of(FLEET, "small", drafter=RETRAINED))
    assert str(RETRAINED) in answer.refusal and answer.decision.plan is None


async def test_a_planner_that_takes_too_long_is_not_waited_for(
    offer: ReplicaOffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_planner(monkeypatch, Planner(), delay_s=5)
    answer = await client.negotiate(offer, timeout_s=0.05)
    assert answer.source == "local" and answer.note == "no answer from the planner within 0.05 s"


async def test_a_replica_that_is_ready_does_not_wait_for_a_planner_that_hangs(
    offer: ReplicaOffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "STARTED_TIMEOUT_S", 0.05)
    planner = Planner()
    handle = with_planner(monkeypatch, planner)
    answer = await client.negotiate(offer)
    reporter = client.Reporter(offer, answer)
    handle.delay_s = 30
    async with asyncio.timeout(5):
        assert not await reporter.started(report_of(answer))
    handle.delay_s = 0
    assert await reporter.beat()
    assert [replica["state"] for replica in await replicas(planner)] == ["running"]


async def test_two_planners_answer_alike(offer: ReplicaOffer) -> None:
    assert await Planner().negotiate(offer) == await Planner(MemoryStore()).negotiate(offer)
