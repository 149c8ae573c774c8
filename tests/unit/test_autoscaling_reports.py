"""What replicas and the ingress tell autoscaling, from the parts that know: reservations, the engine, the queue."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from deployments.autoscaling.figures import Queue, ReplicaFigures, ingress_stats, queues_from_stats
from deployments.engine_slot import EngineSlot
from deployments.forwarder import Forwarder
from deployments.ingress import WaitingHere
from deployments.metrics import ReplicaMetrics
from deployments.observation import Observation, every
from deployments.routing.accounts import Accounts
from deployments.routing.ticket import ReplicaUnavailable, Ticket
from hybrid_serve.engine.base import Engine
from hybrid_serve.plan.kv_plan import EngineReport
from tests.asgi_client import exchange
from tests.generations import prepared
from tests.routing_fleet import request as need
from tests.service_of_pools import Pool, service_of
from tests.unit.test_fake_engine import CHAT, request
from tests.unit.test_ingress_fleet import fails, says
from tests.unit.test_routing_admission import Door


def ticket(blocks: int, sequences: int = 1) -> Ticket:
    return Ticket("replica", "ingress", blocks, sequences, 100)


def test_the_largest_reservation_counts_by_sequence_while_it_is_held() -> None:
    accounts = Accounts()
    with accounts.holding(ticket(5)):
        with accounts.holding(ticket(40, sequences=4)), accounts.holding(ticket(40, sequences=4)):
            assert accounts.largest_blocks == 10
        assert accounts.largest_blocks == 5
    assert accounts.largest_blocks == 0


async def test_the_queue_of_the_ingress_is_told_with_its_lengths() -> None:
    door = Door(45)
    for tokens, sequences in ((700, 1), (64, 1), (700, 1), (64, 3)):
        await door.send(need(tokens, sequences=sequences))
    waiting = list(door.admission.waiting())
    assert [(each.tokens, each.sequences) for each in waiting] == [(64, 1), (700, 1), (64, 3)]
    stats = ingress_stats(WaitingHere("demo", each.tokens, each.sequences) for each in waiting)
    assert queues_from_stats(stats) == {
        ("demo", 7): Queue(requests=4, tokens=256, longest=64),
        ("demo", 10): Queue(requests=1, tokens=700, longest=700),
    }
    await door.close()


class Observed:
    """A fake engine that has started, and what is told of it."""

    def __init__(self) -> None:
        self.slot = EngineSlot()
        self.accounts = self.slot.accounts
        self.report: EngineReport

    @property
    def engine(self) -> Engine:
        assert self.slot.running is not None
        return self.slot.running.engine

    async def start(self, folder: Path) -> Observation:
        self.report = (await self.slot.start(await prepared(folder, fake={"token_s": 0.01}))).report
        gauges = ReplicaMetrics(app="default", model="demo", pool="cpu", replica="r1")
        return Observation(self.slot, gauges)


async def test_an_idle_replica_holds_nothing(pair_folder: Path) -> None:
    observed = Observed()
    figures = ReplicaFigures.from_stats(await (await observed.start(pair_folder)).autoscaling_stats())
    assert figures is not None and figures.kv_tokens == observed.report.kv_tokens
    assert (figures.held_kv_tokens, figures.largest_kv_tokens, figures.requests) == (0, 0, 0)


async def test_a_reservation_counts_before_the_engine_knows_the_request(pair_folder: Path) -> None:
    observed = Observed()
    observation = await observed.start(pair_folder)
    with observed.accounts.holding(ticket(observed.report.num_blocks // 4)):
        figures = ReplicaFigures.from_stats(await observation.autoscaling_stats())
    assert figures is not None
    assert figures.held_kv_tokens == figures.largest_kv_tokens == pytest.approx(figures.kv_tokens / 4, rel=0.01)


async def test_a_request_without_a_reservation_counts_by_what_the_engine_holds(pair_folder: Path) -> None:
    observed = Observed()
    observation = await observed.start(pair_folder)
    running = asyncio.ensure_future(exchange(observed.engine.app, CHAT, request(max_tokens=100, stream=True)))
    await asyncio.sleep(0.05)
    figures = ReplicaFigures.from_stats(await observation.autoscaling_stats())
    await running
    assert figures is not None and figures.requests == 1 and figures.held_kv_tokens > 0


async def test_a_replica_without_an_engine_for_a_while_is_idle_and_as_large_as_it_was(pair_folder: Path) -> None:
    observed = Observed()
    observation = await observed.start(pair_folder)
    await observed.slot.stop()
    figures = ReplicaFigures.from_stats(await observation.autoscaling_stats())
    assert figures is not None
    assert (figures.kv_tokens, figures.held_kv_tokens, figures.requests) == (observed.report.kv_tokens, 0, 0)
    await observation.show()


@pytest.mark.parametrize(
    ("pools", "options", "told"),
    [
        ({"a": Pool(fails(ReplicaUnavailable("gone")))}, {}, ["no_replica"]),
        ({"a": Pool(says("fine"))}, {"blocks": 1}, ["full"]),
        ({"a": Pool(says("fine"))}, {}, []),
    ],
    ids=["no replica serves it", "the fleet is full", "it is answered"],
)
async def test_each_503_is_counted_with_its_reason(pools: Any, options: dict[str, int], told: list[str]) -> None:
    service = service_of("demo", **pools)
    service.admission.max_queue_s = 0.05
    if options:
        await service.admission.admit(need(8_000, sequences=40))
    rejected: list[str] = []
    forwarder = Forwarder({"demo": service}, on_rejected=rejected.append)
    forwarder.retries = 0
    answer = await exchange(forwarder, CHAT, request())
    assert answer.status == (503 if told else 200) and rejected == told


async def test_a_failure_to_show_metrics_is_logged_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    times = 0

    async def show() -> None:
        nonlocal times
        times += 1
        raise RuntimeError("no agent")

    task = asyncio.ensure_future(every(0.001, show))
    await asyncio.sleep(0.05)
    task.cancel()
    assert times > 1 and "metrics were not set: RuntimeError('no agent')" in caplog.text
