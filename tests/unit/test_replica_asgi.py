"""A replica runs an in-process app as a generator of messages; leaving the generator aborts the request."""

import asyncio
import json
from contextlib import aclosing
from pathlib import Path

import pytest

from deployments import asgi
from deployments.asgi import plain_scope, run_app
from hybrid_serve.engine.base import Receive, Scope, Send
from tests.asgi_client import http_scope
from tests.unit.test_fake_engine import CHAT, request, started


async def until(condition: object, seconds: float = 2.0) -> None:
    for _ in range(int(seconds / 0.005)):
        if await condition():  # type: ignore[operator]
            return
        await asyncio.sleep(0.005)
    raise AssertionError("it did not come about in time")


def test_a_plain_scope_can_travel() -> None:
    scope = http_scope("POST", "/v1/models", {"A": "b"})
    plain = plain_scope(scope)
    assert "state" not in plain and plain["headers"] == [(b"a", b"b")] and plain["client"] == ("127.0.0.1", 1)


async def test_messages_come_as_they_are_sent(pair_folder: Path) -> None:
    engine = await started(pair_folder, token_s=0.002)
    messages = [m async for m in run_app(engine.app, plain_scope(CHAT), request(max_tokens=3, stream=True))]
    assert [m["type"] for m in messages] == ["http.response.start"] + ["http.response.body"] * 3
    assert [m["more_body"] for m in messages[1:]] == [True, True, False]


async def test_body_parts_that_wait_already_come_as_one(pair_folder: Path) -> None:
    """Here the last token, `[DONE]` and the end, which one step of an engine gives."""
    engine = await started(pair_folder, token_s=0.002)
    *_, last = [m async for m in run_app(engine.app, plain_scope(CHAT), request(max_tokens=2, stream=True))]
    assert b"token1" in last["body"] and last["body"].endswith(b"data: [DONE]\n\n") and not last["more_body"]


async def test_a_slow_reader_loses_nothing() -> None:
    async def quick(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for index in range(100):
            await send({"type": "http.response.body", "body": b"%d " % index, "more_body": index < 99})

    messages = []
    async for message in run_app(quick, plain_scope(CHAT), b""):
        messages.append(message)
        await asyncio.sleep(0.001)
    assert b"".join(m["body"] for m in messages[1:]) == b"".join(b"%d " % index for index in range(100))
    assert [m["more_body"] for m in messages[1:]][-1] is False


async def test_the_body_reaches_the_app(pair_folder: Path) -> None:
    engine = await started(pair_folder, token_s=0)
    _, message = [m async for m in run_app(engine.app, plain_scope(CHAT), request(max_tokens=1))]
    assert json.loads(message["body"])["model"] == "demo"


async def test_closing_the_generator_disconnects_the_client(pair_folder: Path) -> None:
    engine = await started(pair_folder, token_s=0.005)

    async def idle() -> bool:
        return (await engine.stats()).running == 0

    async with aclosing(run_app(engine.app, plain_scope(CHAT), request(max_tokens=9999, stream=True))) as messages:
        async for message in messages:
            if message["type"] == "http.response.body":
                break
        assert not await idle()
    await until(idle)


async def test_cancelling_the_reader_disconnects_the_client(pair_folder: Path) -> None:
    engine = await started(pair_folder, token_s=0.005)

    async def idle() -> bool:
        return (await engine.stats()).running == 0

    async def busy() -> bool:
        return not await idle()

    async def read() -> None:
        async for _ in run_app(engine.app, plain_scope(CHAT), request(max_tokens=9999)):
            pass

    reader = asyncio.ensure_future(read())
    await until(busy)
    reader.cancel()
    await until(idle)


async def test_an_app_that_ignores_the_disconnect_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asgi, "ABORT_GRACE_S", 0.02)
    ended = asyncio.Event()

    async def deaf(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        try:
            await asyncio.sleep(100)
        finally:
            ended.set()

    async with aclosing(run_app(deaf, plain_scope(CHAT), b"")) as messages:
        async for _ in messages:
            break
    await asyncio.wait_for(ended.wait(), 2)


async def test_an_apps_own_error_is_raised_to_the_reader() -> None:
    async def broken(scope: Scope, receive: Receive, send: Send) -> None:
        raise LookupError("broken")

    with pytest.raises(LookupError, match="broken"):
        async for _ in run_app(broken, plain_scope(CHAT), b""):
            pass


async def test_starlette_is_told_to_listen_for_disconnects() -> None:
    """From ASGI 2.4 on it would not: an idle stream would then run on after its client left."""
    seen: list[str] = []

    async def look(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope["asgi"]["spec_version"])

    async for _ in run_app(look, plain_scope(CHAT), b""):
        pass
    assert seen == ["2.3"]
