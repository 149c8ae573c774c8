"""The ingress over several replicas and models: retries before the first byte, fullness, names, health."""

import asyncio
import json
import pickle
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayTaskError

from deployments.forwarder import Forwarder
from deployments.routing.facts import ReplicaLoad
from deployments.routing.need import RequestNeed
from deployments.routing.reservation import Known
from deployments.routing.ticket import ReplicaDraining, ReplicaFull, ReplicaUnavailable, Ticket
from hybrid_serve.engine.base import Message
from tests.asgi_client import Exchange, exchange, http_scope
from tests.routing_fleet import facts
from tests.service_of_pools import Pool, service_of
from tests.unit.test_fake_engine import CHAT, request

JSON = [(b"content-type", b"application/json")]
FAILURES = (
    ActorDiedError(),
    ActorUnavailableError("gone", None),
    ReplicaUnavailable("the engine died"),
    RayTaskError("handle", "Traceback", ReplicaUnavailable("the engine died")).as_instanceof_cause(),
)


def says(value: Any) -> Any:
    """A replica that answers `value` as JSON."""

    async def run(scope: dict[str, Any], body: bytes, ticket: Ticket) -> AsyncGenerator[Message]:
        yield {"type": "http.response.start", "status": 200, "headers": JSON}
        yield {"type": "http.response.body", "body": json.dumps(value).encode(), "more_body": False}

    return run


def fails(error: Exception, *, after: bytes = b"") -> Any:
    """A replica that fails, after a piece of a stream if `after` is given."""

    async def run(scope: dict[str, Any], body: bytes, ticket: Ticket) -> AsyncGenerator[Message]:
        if after:
            yield {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]}
            yield {"type": "http.response.body", "body": after, "more_body": True}
        raise error
        yield {}

    return run


def error_of(told: Exchange) -> dict[str, Any]:
    error: dict[str, Any] = json.loads(told.body)["error"]
    return error


@pytest.mark.parametrize("error", FAILURES, ids=lambda error: type(error).__name__)
async def test_a_replica_that_fails_before_the_first_byte_is_replaced_by_another(error: Exception) -> None:
    pools = {"a": Pool(fails(error)), "b": Pool(fails(error)), "c": Pool(says("from c"))}
    service = service_of("demo", **pools)
    forwarder = Forwarder({"demo": service})
    told = [await exchange(forwarder, CHAT, request()) for _ in range(3)]
    assert [each.body for each in told] == [b'"from c"'] * 3
    assert len(pools["a"].tickets) <= 1 and len(pools["b"].tickets) <= 1, "suspects are not asked again"
    assert len(pools["c"].tickets) == 3 and service.board.reserved == 0


async def test_after_the_first_byte_nothing_is_retried() -> None:
    pools = {
        "a": Pool(fails(ActorDiedError(), after=b"data: 1\n\n")),
        "b": Pool(fails(ActorDiedError(), after=b"data: 1\n\n")),
    }
    service = service_of("demo", **pools)
    told = await exchange(Forwarder({"demo": service}), CHAT, request(stream=True))
    assert sum(len(pool.tickets) for pool in pools.values()) == 1
    first, event, done = told.body.decode().strip().split("\n\n")
    assert (first, done) == ("data: 1", "data: [DONE]") and json.loads(event[6:])["error"]["code"] == 502
    assert told.complete and service.board.reserved == 0


async def test_no_more_replicas_are_tried_than_allowed() -> None:
    pools = {name: Pool(fails(ActorDiedError())) for name in "abcdef"}
    forwarder = Forwarder({"demo": service_of("demo", **pools)})
    forwarder.retries = 3
    told = await exchange(forwarder, CHAT, request())
    assert told.status == 503 and "retry-after" in told.headers
    assert sum(len(pool.tickets) for pool in pools.values()) == 4


async def test_retries_that_are_changed_in_flight_do_not_leave_a_request_without_an_answer() -> None:
    async def raise_the_limit(scope: dict[str, Any], body: bytes, ticket: Ticket) -> AsyncGenerator[Message]:
        forwarder.retries += 5
        raise ActorDiedError()
        yield {}

    pools = {name: Pool(raise_the_limit) for name in "abc"}
    forwarder = Forwarder({"demo": service_of("demo", **pools)})
    forwarder.retries = 1
    told = await exchange(forwarder, CHAT, request())
    assert told.status == 503 and sum(len(pool.tickets) for pool in pools.values()) == 2


async def test_a_replica_that_is_full_costs_no_retry_and_is_no_suspect() -> None:
    full = Pool(fails(ReplicaFull("28 requests")))
    service = service_of("demo", a=full, b=full, c=Pool(says("from c")))
    forwarder = Forwarder({"demo": service})
    forwarder.retries = 0
    told = [await exchange(forwarder, CHAT, request()) for _ in range(3)]
    assert [each.body for each in told] == [b'"from c"'] * 3 and service.board.reserved == 0
    assert 1 <= len(full.tickets) <= 2, "each was asked once at most"


DRAINING = (
    pickle.loads(pickle.dumps(ReplicaDraining("another engine"))),
    RayTaskError("handle", "Traceback", ReplicaDraining("another engine")).as_instanceof_cause(),
)


@pytest.mark.parametrize("error", DRAINING, ids=lambda error: type(error).__name__)
async def test_a_replica_that_drains_costs_no_retry_and_is_no_suspect(error: Exception) -> None:
    draining = Pool(fails(error))
    service = service_of("demo", a=draining, b=draining, c=Pool(says("from c")))
    forwarder = Forwarder({"demo": service})
    forwarder.retries = 0
    told = [await exchange(forwarder, CHAT, request()) for _ in range(4)]
    assert [each.body for each in told] == [b'"from c"'] * 4 and service.board.reserved == 0
    assert 1 <= len(draining.tickets) <= 2, "each was asked once at most"
    assert all(entry.suspect_since is None for entry in service.board._entries.values())


async def test_a_request_waits_for_the_only_replica_to_run_its_next_engine() -> None:
    async def drains(scope: dict[str, Any], body: bytes, ticket: Ticket) -> AsyncGenerator[Message]:
        if len(pool.tickets) == 1:
            raise ReplicaDraining("another engine")
        async for message in says("from the next engine")(scope, body, ticket):
            yield message

    pool = Pool(drains)
    service = service_of("demo", a=pool)
    service.board.suspect_s = 0.05
    forwarder = Forwarder({"demo": service})
    asking = asyncio.ensure_future(exchange(forwarder, CHAT, request()))
    await asyncio.sleep(0.02)
    assert not asking.done() and (await exchange(forwarder, http_scope("GET", "/health"))).status == 503
    for sequence in (1, 2, 3):
        await asyncio.sleep(0.06)
        load = ReplicaLoad(sequence=sequence, draining=sequence < 3)
        service.board._clock.now += 1  # type: ignore[attr-defined]
        service.board.update("a", {"a": Known(facts(500, pool="a"), load, 10_000)})
        await asyncio.sleep(0)
    told = await asyncio.wait_for(asking, 5)
    assert told.body == b'"from the next engine"' and len(pool.tickets) == 2


async def test_a_fleet_that_drains_for_longer_than_a_request_may_wait_is_503() -> None:
    service = service_of("demo", a=Pool(fails(ReplicaDraining("another engine"))))
    service.admission.max_queue_s = 0.05
    told = await exchange(Forwarder({"demo": service}), CHAT, request())
    assert told.status == 503 and int(told.headers["retry-after"]) >= 1 and service.board.reserved == 0


async def test_a_full_fleet_is_healthy_and_its_requests_wait_no_longer_than_they_may() -> None:
    pool = Pool(fails(ReplicaFull("28 requests")))
    service = service_of("demo", a=pool)
    service.admission.max_queue_s = 0.05
    forwarder = Forwarder({"demo": service})
    told = await exchange(forwarder, CHAT, request())
    assert told.status == 503 and int(told.headers["retry-after"]) >= 1 and "full" in error_of(told)["message"]
    assert (await exchange(forwarder, http_scope("GET", "/health"))).status == 200
    assert len(pool.tickets) == 1 and service.admission.queued_requests == 0
    service.admission.check_integrity()


async def test_a_fleet_that_is_full_again_and_again_is_503_in_the_end() -> None:
    """Its reports say each time that it has room: the time that refusals take counts as waiting."""

    async def full_again(scope: dict[str, Any], body: bytes, ticket: Ticket) -> AsyncGenerator[Message]:
        await asyncio.sleep(0.02)
        known = Known(facts(1000, pool="a"), ReplicaLoad(sequence=len(pool.tickets)), 10_000)
        asyncio.get_running_loop().call_soon(service.board.update, "a", {"a": known})
        raise ReplicaFull("28 requests")
        yield {}

    pool = Pool(full_again)
    service = service_of("demo", a=pool)
    service.admission.max_queue_s = 0.1
    told = await asyncio.wait_for(exchange(Forwarder({"demo": service}), CHAT, request()), 5)
    assert told.status == 503 and 2 <= len(pool.tickets) <= 6 and service.board.reserved == 0


async def test_a_request_waits_no_longer_over_all_its_attempts_than_it_may_once() -> None:
    service = service_of("demo", a=Pool(fails(ActorDiedError())), b=Pool(fails(ActorDiedError())))
    service.admission.max_queue_s = 0.3
    everything = RequestNeed(prompt_tokens=8000, output_tokens=1, sequences=40)
    occupied = [service.board.reserve(everything) for _ in range(2)]
    begun = asyncio.get_running_loop().time()
    asking = asyncio.ensure_future(exchange(Forwarder({"demo": service}), CHAT, request()))
    await asyncio.sleep(0.2)
    assert occupied[0] is not None and occupied[1] is not None and not asking.done()
    service.board.release(occupied[0])
    told = await asking
    assert told.status == 503 and "full" in error_of(told)["message"]
    assert 0.28 <= asyncio.get_running_loop().time() - begun < 0.45, "0.2 s before the first attempt, 0.1 s after it"


async def test_a_request_that_breaks_the_app_is_not_taken_from_replica_to_replica() -> None:
    error = RayTaskError("handle", "Traceback", LookupError("inside")).as_instanceof_cause()
    pools = {name: Pool(fails(error)) for name in "abc"}
    service = service_of("demo", **pools)
    told = await exchange(Forwarder({"demo": service}), CHAT, request())
    assert told.status == 500 and sum(len(pool.tickets) for pool in pools.values()) == 1
    assert len(service.board.free_tokens()) == 3, "nobody became suspect"


async def test_an_error_of_the_engines_app_is_passed_on_and_not_retried() -> None:
    async def refuse(scope: dict[str, Any], body: bytes, ticket: Ticket) -> AsyncGenerator[Message]:
        yield {"type": "http.response.start", "status": 400, "headers": JSON}
        yield {"type": "http.response.body", "body": b"{}", "more_body": False}

    pools = {"a": Pool(refuse), "b": Pool(refuse)}
    told = await exchange(Forwarder({"demo": service_of("demo", **pools)}), CHAT, request())
    assert told.status == 400 and sum(len(pool.tickets) for pool in pools.values()) == 1


async def test_a_full_fleet_is_503_with_the_time_to_come_back_and_those_inside_finish() -> None:
    async def slow(scope: dict[str, Any], body: bytes, ticket: Ticket) -> AsyncGenerator[Message]:
        await asyncio.sleep(0.05)
        yield {"type": "http.response.start", "status": 200, "headers": JSON}
        yield {"type": "http.response.body", "body": b"{}", "more_body": False}

    service = service_of("demo", blocks=40, pool=Pool(slow))
    service.admission.max_queued = 2
    forwarder = Forwarder({"demo": service})
    told = await asyncio.gather(*(exchange(forwarder, CHAT, request(max_tokens=8)) for _ in range(12)))
    statuses = [each.status for each in told]
    assert set(statuses) == {200, 503} and statuses.count(200) >= 3
    for each in told:
        if each.status == 503:
            assert int(each.headers["retry-after"]) >= 1 and error_of(each)["type"] == "ServiceUnavailableError"
    assert service.board.reserved == 0
    service.admission.check_integrity()


async def test_a_client_that_leaves_the_queue_leaves_nothing_behind() -> None:
    async def stuck(scope: dict[str, Any], body: bytes, ticket: Ticket) -> AsyncGenerator[Message]:
        await asyncio.sleep(60)
        yield {}

    service = service_of("demo", blocks=12, pool=Pool(stuck))
    forwarder = Forwarder({"demo": service})
    tasks = [asyncio.ensure_future(exchange(forwarder, CHAT, request(max_tokens=8))) for _ in range(3)]
    await asyncio.sleep(0.02)
    assert service.board.reserved == 1 and service.admission.queued_requests == 2
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert service.board.reserved == 0 and service.admission.queued_requests == 0


@pytest.mark.parametrize("comes_back", [True, False])
async def test_a_stream_that_falls_silent_ends_once_its_replica_has_left_and_drained(
    comes_back: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deployments.routing.in_flight.AFTER_DRAIN_S", 0.02)
    silence = asyncio.Event()

    async def fall_silent(scope: dict[str, Any], body: bytes, ticket: Ticket) -> AsyncGenerator[Message]:
        yield {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]}
        yield {"type": "http.response.body", "body": b"data: 1\n\n", "more_body": True}
        await silence.wait()
        yield {"type": "http.response.body", "body": b"data: [DONE]\n\n", "more_body": False}

    pool = Pool(fall_silent)
    service = service_of("demo", pool=pool, drain_s=0.02)
    task = asyncio.ensure_future(exchange(Forwarder({"demo": service}), CHAT, request(stream=True)))
    await asyncio.sleep(0.01)
    replicas = {"pool": Known(facts(1000), ReplicaLoad(), 10_000)}
    service.board.update("pool", {})
    if comes_back:
        service.board.update("pool", replicas)
    if comes_back:
        await asyncio.sleep(0.08)
        assert not task.done()
        silence.set()
    told = await asyncio.wait_for(task, 5)
    events = told.body.decode().strip().split("\n\n")
    assert events[-1] == "data: [DONE]" and len(events) == (2 if comes_back else 3)
    assert service.board.reserved == 0 and pool.responses[0].cancelled is not comes_back


async def test_the_ticket_tells_the_replica_what_is_reserved() -> None:
    pool = Pool(says(1))
    service = service_of("demo", pool=pool)
    await exchange(
        Forwarder({"demo": service}), CHAT, request(max_tokens=8, messages=[{"role": "user", "content": "x" * 700}])
    )
    (ticket,) = pool.tickets
    assert (ticket.replica_id, ticket.ingress_id, ticket.sequences) == ("pool", "here", 1)
    assert ticket.blocks > 10 and 700 <= ticket.prompt_bytes <= 710


def two_models() -> tuple[Forwarder, Pool, Pool]:
    def card(name: str) -> dict[str, Any]:
        return {"object": "list", "data": [{"id": name, "object": "model", "max_model_len": 4096}]}

    one, two = Pool(says(card("one"))), Pool(says(card("two")))
    return Forwarder({"one": service_of("one", a=one), "two": service_of("two", b=two)}), one, two


async def test_each_model_is_served_by_its_own_pools() -> None:
    forwarder, one, two = two_models()
    for name in ("one", "two", "two"):
        assert (await exchange(forwarder, CHAT, json.dumps({"model": name, "messages": []}).encode())).status == 200
    assert (len(one.tickets), len(two.tickets)) == (1, 2)
    told = await exchange(forwarder, CHAT, b'{"model": "three", "messages": []}')
    assert told.status == 404 and error_of(told)["message"] == "The model `three` does not exist."


async def test_among_several_models_one_must_be_named() -> None:
    forwarder, one, two = two_models()
    told = await exchange(forwarder, CHAT, b'{"messages": []}')
    assert told.status == 400 and "`one`, `two`" in error_of(told)["message"]
    assert (await exchange(forwarder, http_scope("GET", "/version"))).status == 200
    assert len(one.tickets) + len(two.tickets) == 1


async def test_the_list_of_models_has_every_models_own_card() -> None:
    forwarder, _, two = two_models()
    models = http_scope("GET", "/v1/models")
    cards = json.loads((await exchange(forwarder, models)).body)["data"]
    assert [(card["id"], card["max_model_len"]) for card in cards] == [("one", 4096), ("two", 4096)]
    two._run = fails(ActorDiedError())
    cards = json.loads((await exchange(forwarder, models)).body)["data"]
    assert [(card["id"], card["max_model_len"]) for card in cards] == [("one", 4096), ("two", 8192)]


async def test_a_pool_that_cannot_be_called_leaves_no_reservation_behind() -> None:
    class Uncallable(Pool):
        def remote(self, scope: dict[str, Any], body: bytes, ticket: Ticket) -> Any:
            raise RuntimeError("the handle is closed")

    services = {"one": service_of("one", a=Uncallable(None)), "two": service_of("two", b=Pool(says({"data": []})))}
    told = await exchange(Forwarder(services), http_scope("GET", "/v1/models"))
    assert [card["id"] for card in json.loads(told.body)["data"]] == ["one"]
    assert services["one"].board.reserved == 0


async def test_a_full_replica_lists_its_model_by_name_and_is_no_suspect() -> None:
    services = {"one": service_of("one", a=Pool(fails(ReplicaFull("28")))), "two": service_of("two", b=Pool(says(1)))}
    told = await exchange(Forwarder(services), http_scope("GET", "/v1/models"))
    assert [card["id"] for card in json.loads(told.body)["data"]] == ["one", "two"]
    board = services["one"].board
    assert board.can_serve and board.free_tokens() == {} and board.reserved == 0


async def test_a_draining_replica_lists_its_model_by_name() -> None:
    draining = Pool(fails(ReplicaDraining("another engine")))
    services = {"one": service_of("one", a=draining), "two": service_of("two", b=Pool(says(1)))}
    for _ in range(2):
        told = await exchange(Forwarder(services), http_scope("GET", "/v1/models"))
        assert [card["id"] for card in json.loads(told.body)["data"]] == ["one", "two"]
    assert len(draining.tickets) == 1 and services["one"].board.reserved == 0


async def test_health_is_that_of_the_fleet() -> None:
    service = service_of("demo", a=Pool(None), b=Pool(None))
    forwarder = Forwarder({"demo": service})
    health = http_scope("GET", "/health")
    assert (await exchange(forwarder, health)).status == 200
    service.board.suspect("a")
    assert (await exchange(forwarder, health)).status == 200
    service.board.suspect("b")
    told = await exchange(forwarder, health)
    assert told.status == 503 and told.complete
