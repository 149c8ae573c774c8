"""The request router as Ray Serve's `AsyncioRouter` drives it; the replicas are stand-ins for running ones."""

import asyncio
from typing import Any

import pytest
from ray.serve._private.common import DeploymentHandleSource, DeploymentID, ReplicaID, RequestMetadata
from ray.serve._private.request_router.common import PendingRequest

from deployments.routing.board import Board
from deployments.routing.boards import board_of
from deployments.routing.facts import ReplicaLoad
from deployments.routing.router import CapacityRouter
from deployments.routing.ticket import ReplicaFull, ReplicaUnavailable, Ticket
from tests.routing_fleet import facts

POOL = DeploymentID(name="pool", app_name="app of the router's test")


class Running:
    """Stands for a RunningReplica."""

    max_ongoing_requests = 28

    def __init__(self, name: str) -> None:
        self.replica_id = ReplicaID(unique_id=name, deployment_id=POOL)
        self.routing_stats: dict[str, Any] = {}
        self.replica_metadata = facts(1000).to_metadata()

    async def get_queue_len(self, *, deadline_s: float) -> int:
        return 0


async def router_of(*replicas: Running) -> CapacityRouter:
    router = CapacityRouter(deployment_id=POOL, handle_source=DeploymentHandleSource.REPLICA)
    router.initialize_state(model="demo")
    router.update_replicas(replicas)
    await asyncio.sleep(0)
    return router


def pending(replica: str) -> PendingRequest:
    metadata = RequestMetadata(request_id="1", internal_request_id="1")
    return PendingRequest(args=[{}, b"", Ticket(replica, "here", 5, 1, 100)], kwargs={}, metadata=metadata)


async def test_a_request_goes_to_the_replica_on_its_ticket() -> None:
    one, two = Running("one"), Running("two")
    router = await router_of(one, two)
    assert await router._choose_replica_for_request(pending("two")) is two
    board: Board = board_of(POOL.app_name, "demo")
    assert set(board.free_tokens()) == {"one", "two"}
    with pytest.raises(ReplicaUnavailable, match="three of pool pool is gone"):
        await router._choose_replica_for_request(pending("three"))


async def test_a_replica_that_answers_that_it_takes_no_more_is_full() -> None:
    one = Running("one")
    router = await router_of(one)
    request = pending("one")
    await router._choose_replica_for_request(request)
    router.on_new_queue_len_info(one.replica_id, 28)
    with pytest.raises(ReplicaFull, match="one of pool pool has 28 requests, its max_ongoing_requests"):
        await router._choose_replica_for_request(request, is_retry=True)


async def test_a_replica_that_does_not_answer_is_not_called_full() -> None:
    one = Running("one")
    router = await router_of(one)
    router.on_replica_actor_unavailable(one.replica_id)
    with pytest.raises(ReplicaUnavailable, match="out of reach") as caught:
        await router._choose_replica_for_request(pending("one"), is_retry=True)
    assert not isinstance(caught.value, ReplicaFull)
    router.on_new_queue_len_info(one.replica_id, 28)
    with pytest.raises(ReplicaFull):
        await router._choose_replica_for_request(pending("one"), is_retry=True)


async def test_a_replica_that_died_is_gone() -> None:
    one, two = Running("one"), Running("two")
    router = await router_of(one, two)
    router.on_replica_actor_unavailable(one.replica_id)
    router.on_replica_actor_died(one.replica_id)
    with pytest.raises(ReplicaUnavailable, match="is gone"):
        await router._choose_replica_for_request(pending("one"), is_retry=True)
    assert router._out_of_reach == set()


async def test_a_replica_that_runs_another_engine_is_known_by_what_it_tells_with_its_load() -> None:
    one = Running("one")
    router = await router_of(one)
    board: Board = board_of(POOL.app_name, "demo")
    later = facts(500, max_model_len=100).to_metadata()
    for facts_told, longest in ((later, 100), (dict(later), 100), ({"colour": "red"}, 100), (None, 8192)):
        sequence = one.routing_stats.get("sequence", 0) + 1
        one.routing_stats = ReplicaLoad(sequence=sequence, facts=facts_told).to_stats()
        router.update_replicas([one])
        assert board.max_model_len == longest
    router.update_replicas([])
    assert router._later_facts == {}
