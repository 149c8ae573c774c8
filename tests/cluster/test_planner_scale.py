"""A real planner actor and a thousand replicas that ask at once; and its store, beside the one in memory."""

import os
import time
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
import ray

from hybrid_serve.negotiation.client import DEFAULT_TIMEOUT_S
from hybrid_serve.negotiation.offer import PlanAnswer
from hybrid_serve.negotiation.planner import Planner
from hybrid_serve.negotiation.store import MemoryStore, RayStore, Store
from tests.cluster.conftest import Cluster
from tests.fleets import report_of
from tests.unit.test_negotiation_speed import KINDS, SLACK, offers

pytestmark = pytest.mark.cluster

REPLICAS = 1000
NEGOTIATION_SECONDS = 2.5
GROWTH_BYTES = 200 * 2**20


@pytest.fixture
def planner(cluster: Cluster) -> Iterator[Any]:
    """The planner's actor, beside the cluster's own."""
    actor = ray.remote(Planner).options(num_cpus=0).remote(MemoryStore())
    yield actor
    ray.kill(actor)


def test_a_thousand_replicas_of_eight_kinds_are_negotiated_with_before_one_plans_for_itself(planner: Any) -> None:
    assert len(KINDS) == 8
    asked = offers(REPLICAS)
    process = psutil.Process(ray.get(planner.status.remote(), timeout=30)["pid"])
    before = process.memory_info().rss
    started, worked = time.monotonic(), sum(process.cpu_times()[:2])
    answers: list[PlanAnswer] = ray.get([planner.negotiate.remote(offer) for offer in asked], timeout=60)
    negotiated, worked = time.monotonic() - started, sum(process.cpu_times()[:2]) - worked
    assert {answer.refusal for answer in answers} == {""}
    assert len({answer.agreement for answer in answers}) == 1
    told = [(offer, answer, report_of(answer), "i") for offer, answer in zip(asked, answers, strict=True)]
    ray.get([planner.report.remote(*values) for values in told], timeout=60)
    beat = time.monotonic()
    orders = ray.get([planner.heartbeat.remote(offer.replica_id, "i") for offer in asked], timeout=60)
    assert all(order.known for order in orders)
    heartbeats = time.monotonic() - beat
    status = ray.get(planner.status.remote(), timeout=60)
    grown = process.memory_info().rss - before
    print(f"negotiated in {negotiated:.2f} s, {worked:.2f} s of them the planner's CPU time")
    print(f"heartbeats in {heartbeats:.2f} s, grown by {grown / 2**20:.0f} MiB")
    assert status["integrity"] == ""
    assert [entry["state"] for entry in status["replicas"]] == ["running"] * REPLICAS
    assert negotiated < DEFAULT_TIMEOUT_S, "replicas would have planned for themselves"
    assert worked < SLACK * NEGOTIATION_SECONDS
    assert grown < GROWTH_BYTES


@pytest.mark.parametrize("make", [MemoryStore, RayStore])
def test_both_stores_keep_values_by_name(make: type[Store], cluster: Cluster) -> None:
    store, key = make(), f"test-{os.getpid()}"
    assert store.read(key) is None
    for value in (b"first", b"", b"\x00" * 100_000):
        store.write(key, value)
        assert store.read(key) == value
    assert store.read(key + "-other") is None


def test_what_rays_store_keeps_is_read_by_another_process(cluster: Cluster) -> None:
    RayStore().write("test-shared", b"value")

    @ray.remote(num_cpus=0)
    def read() -> bytes | None:
        return RayStore().read("test-shared")

    assert ray.get(read.remote(), timeout=60) == b"value"
