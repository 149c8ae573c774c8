"""A replica's side: it starts whether or not there is a planner."""

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from hybrid_serve.negotiation import client
from hybrid_serve.negotiation.offer import ReplicaOffer
from hybrid_serve.negotiation.planner import Planner
from hybrid_serve.plan.decide import decide
from tests.demo_app import demo_offer


class Method:
    """Stands for an actor's method: `.remote(...)` gives something to await."""

    def __init__(self, method: Any, delay_s: float = 0.0) -> None:
        self._method, self._delay_s = method, delay_s

    async def remote(self, *args: Any) -> Any:
        await asyncio.sleep(self._delay_s)
        return await self._method(*args)


class Handle:
    """Stands for the actor's handle, in front of a real Planner."""

    def __init__(self, planner: Planner, delay_s: float = 0.0) -> None:
        self._planner, self._delay_s = planner, delay_s

    def __getattr__(self, name: str) -> Method:
        return Method(getattr(self._planner, name), self._delay_s)


@pytest.fixture
def offer(pair_folder: Path) -> ReplicaOffer:
    return demo_offer(pair_folder)


async def test_the_planner_answers_and_remembers(offer: ReplicaOffer, monkeypatch: pytest.MonkeyPatch) -> None:
    planner = Planner()
    monkeypatch.setattr(client, "planner_handle", lambda: Handle(planner))
    answer = await client.negotiate(offer)
    assert answer.source == "planner" and answer.note == ""
    assert await client.report(offer, answer, None)
    (replica,) = (await planner.status())["replicas"]
    assert replica["replica_id"] == offer.replica_id and replica["state"] == "offered"
    assert await client.forget(offer.replica_id)
    assert await planner.status() == {"replicas": []}


async def test_an_unreachable_planner_means_a_local_plan_that_says_so(
    offer: ReplicaOffer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def unreachable() -> Handle:
        raise ConnectionError("no control store at 127.0.0.1\nmore")

    monkeypatch.setattr(client, "planner_handle", unreachable)
    with caplog.at_level(logging.WARNING):
        answer = await client.negotiate(offer)
    assert answer.source == "local"
    assert answer.note == "planner unreachable: no control store at 127.0.0.1"
    assert answer.decision == decide(offer.inputs, offer.policy)
    assert "plans for itself" in caplog.text
    assert not await client.report(offer, answer, None)


async def test_a_planner_that_takes_too_long_is_not_waited_for(
    offer: ReplicaOffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "planner_handle", lambda: Handle(Planner(), delay_s=5))
    answer = await client.negotiate(offer, timeout_s=0.05)
    assert answer.source == "local" and answer.note == "no answer from the planner within 0.05 s"


async def test_two_planners_answer_alike(offer: ReplicaOffer) -> None:
    assert await Planner().negotiate(offer) == await Planner().negotiate(offer)
