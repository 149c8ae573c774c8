"""What the ingress answers itself, and that it changes nothing else. The pools are stand-ins for Ray Serve handles."""

import asyncio
import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from ray.exceptions import ActorDiedError
from ray.serve.exceptions import BackPressureError

from deployments.asgi import run_app
from deployments.forwarder import Forwarder
from deployments.routing.ticket import Ticket
from hybrid_serve.engine.base import Message
from tests.asgi_client import Exchange, exchange, http_scope
from tests.service_of_pools import Pool, service_of
from tests.unit.test_fake_engine import CHAT, request, started


def forwarder_of(pool: Pool, **limits: Any) -> Forwarder:
    """In front of one model on one replica."""
    forwarder = Forwarder({"demo": service_of("demo", pool=pool)})
    for name, value in limits.items():
        setattr(forwarder, name, value)
    return forwarder


def error_of(told: Exchange) -> dict[str, Any]:
    error: dict[str, Any] = json.loads(told.body)["error"]
    assert set(error) == {"message", "type", "param", "code"} and error["code"] == told.status
    return error


async def fake_pool(folder: Path) -> Pool:
    engine = await started(folder, token_s=0.001)
    return Pool(lambda scope, body, ticket: run_app(engine.app, scope, body))


async def start_then(step: Any, content_type: bytes = b"text/event-stream; charset=utf-8") -> AsyncGenerator[Message]:
    yield {"type": "http.response.start", "status": 200, "headers": [(b"content-type", content_type)]}
    yield {"type": "http.response.body", "body": b"data: 1\n\n", "more_body": True}
    await step()
    yield {"type": "http.response.body", "body": b"", "more_body": False}


async def die() -> None:
    raise ActorDiedError()


async def test_an_answer_is_forwarded_unchanged(pair_folder: Path) -> None:
    engine = await started(pair_folder, token_s=0)
    pool = Pool(lambda scope, body, ticket: run_app(engine.app, scope, body))
    for body in (request(max_tokens=3, stream=True), b"{not json", b"", b"[1]"):
        straight, through = await exchange(engine.app, CHAT, body), await exchange(forwarder_of(pool), CHAT, body)
        assert through.messages[0] == straight.messages[0]
        assert through.body == straight.body and through.complete
    assert not any(response.cancelled for response in pool.responses)


async def test_a_body_in_parts_is_put_together(pair_folder: Path) -> None:
    body = request(max_tokens=1)
    told = await exchange(forwarder_of(await fake_pool(pair_folder)), CHAT, body[:5], body[5:9], body[9:])
    assert told.status == 200


async def test_an_unknown_model_is_refused_in_vllms_words(pair_folder: Path) -> None:
    pool = await fake_pool(pair_folder)
    told = await exchange(forwarder_of(pool), CHAT, json.dumps({"model": "other"}).encode())
    error = error_of(told)
    assert (told.status, error["type"], error["param"]) == (404, "NotFoundError", "model")
    assert error["message"] == "The model `other` does not exist."
    assert pool.responses == []


@pytest.mark.parametrize("body", [b'{"model": "demo"}', b'{"model": null}', b'{"model": ""}', b"{}", b'{"model": 3}'])
async def test_what_is_not_clearly_another_model_is_left_to_vllm(pair_folder: Path, body: bytes) -> None:
    pool = await fake_pool(pair_folder)
    await exchange(forwarder_of(pool), CHAT, body)
    assert len(pool.responses) == 1


async def test_with_adapters_model_names_are_left_to_vllm(pair_folder: Path) -> None:
    pool = await fake_pool(pair_folder)
    await exchange(Forwarder({"demo": service_of("demo", pool=pool)}, check_model=False), CHAT, b'{"model": "adapter"}')
    assert len(pool.responses) == 1


@pytest.mark.parametrize("declared", [True, False])
async def test_a_body_over_the_limit_is_413(pair_folder: Path, declared: bool) -> None:
    pool = await fake_pool(pair_folder)
    forwarder = forwarder_of(pool)
    forwarder.max_body = 100
    headers = {"content-type": "application/json"} | ({"content-length": "101"} if declared else {})
    scope = http_scope("POST", "/v1/chat/completions", headers)
    told = await exchange(forwarder, scope, b"x" * 60, b"x" * 41)
    assert told.status == 413 and "larger than 100 bytes" in error_of(told)["message"]
    assert pool.responses == []


async def test_a_head_that_carries_the_first_piece_is_sent_as_two_messages() -> None:
    async def run(scope: dict[str, Any], body: bytes, ticket: Ticket) -> AsyncGenerator[Message]:
        yield {"type": "http.response.start", "status": 200, "headers": [], "body": b"one ", "more_body": True}
        yield {"type": "http.response.body", "body": b"two", "more_body": False}

    told = await exchange(forwarder_of(Pool(run)), CHAT, request())
    assert told.messages == [
        {"type": "http.response.start", "status": 200, "headers": []},
        {"type": "http.response.body", "body": b"one ", "more_body": True},
        {"type": "http.response.body", "body": b"two", "more_body": False},
    ]


async def test_a_client_that_has_its_answer_finds_the_room_free_that_it_had() -> None:
    """The replica's stream may end later."""

    async def run(scope: dict[str, Any], body: bytes, ticket: Ticket) -> AsyncGenerator[Message]:
        yield {"type": "http.response.start", "status": 200, "headers": []}
        yield {"type": "http.response.body", "body": b"all", "more_body": False}
        await asyncio.sleep(0.01)

    service, reserved = service_of("demo", pool=Pool(run)), []

    async def receive() -> Message:
        return {"type": "http.request", "body": request(), "more_body": False}

    async def send(message: Message) -> None:
        reserved.append(service.board.reserved)

    await Forwarder({"demo": service})(CHAT, receive, send)
    assert reserved == [1, 0] and service.board.reserved == 0
    service.board.check_integrity()


async def test_a_full_queue_is_503_with_retry_after() -> None:
    async def full(scope: dict[str, Any], body: bytes, ticket: Ticket) -> AsyncGenerator[Message]:
        raise BackPressureError(num_queued_requests=9, max_queued_requests=9)
        yield {}

    told = await exchange(forwarder_of(Pool(full), retries=0), CHAT, request())
    assert told.status == 503 and told.headers["retry-after"] == "1" and error_of(told)


async def test_a_replica_that_dies_before_it_answers_is_503_if_no_other_may_be_tried() -> None:
    async def dead(scope: dict[str, Any], body: bytes, ticket: Ticket) -> AsyncGenerator[Message]:
        raise ActorDiedError()
        yield {}

    told = await exchange(forwarder_of(Pool(dead), retries=0), CHAT, request())
    assert told.status == 503 and told.headers["retry-after"] == "1"
    assert error_of(told)["type"] == "ServiceUnavailableError"


async def test_a_replica_that_dies_in_a_stream_ends_it_with_an_error_event() -> None:
    pool = Pool(lambda scope, body, ticket: start_then(die))
    told = await exchange(forwarder_of(pool), CHAT, request(stream=True))
    first, event, done = told.body.decode().strip().split("\n\n")
    assert (first, done) == ("data: 1", "data: [DONE]")
    assert json.loads(event.removeprefix("data: "))["error"]["code"] == 502
    assert told.complete and pool.responses[0].cancelled


async def test_an_app_that_fails_is_500() -> None:
    async def broken(scope: dict[str, Any], body: bytes, ticket: Ticket) -> AsyncGenerator[Message]:
        raise LookupError("inside")
        yield {}

    told = await exchange(forwarder_of(Pool(broken)), CHAT, request())
    assert told.status == 500 and error_of(told)["type"] == "InternalServerError"


async def test_a_replica_that_dies_in_a_plain_answer_breaks_the_connection() -> None:
    pool = Pool(lambda scope, body, ticket: start_then(die, b"application/json"))
    with pytest.raises(ConnectionAbortedError):
        await exchange(forwarder_of(pool), CHAT, request())


async def test_a_request_that_takes_too_long_is_504_and_cancelled() -> None:
    async def slow(scope: dict[str, Any], body: bytes, ticket: Ticket) -> AsyncGenerator[Message]:
        await asyncio.sleep(10)
        yield {}

    pool = Pool(slow)
    forwarder = forwarder_of(pool)
    forwarder.request_timeout_s = 0.02
    told = await exchange(forwarder, CHAT, request())
    assert told.status == 504 and pool.responses[0].cancelled


async def test_a_cancelled_request_is_cancelled_in_the_replica() -> None:
    pool = Pool(lambda scope, body, ticket: start_then(lambda: asyncio.sleep(10)))
    task = asyncio.ensure_future(exchange(forwarder_of(pool), CHAT, request(stream=True)))
    await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert pool.responses[0].cancelled


async def test_lifespan_is_answered() -> None:
    events = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]
    told: list[str] = []

    async def receive() -> Message:
        return events.pop(0)

    async def send(message: Message) -> None:
        told.append(message["type"])

    await forwarder_of(Pool(None))({"type": "lifespan"}, receive, send)
    assert told == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
