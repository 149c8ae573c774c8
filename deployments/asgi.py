"""ASGI messages in and out of one in-process app."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from typing import Any

from hybrid_serve.engine.base import ASGIApp, Message, Scope

ABORT_GRACE_S = 10.0
"""Seconds an app gets to leave after http.disconnect before its task is cancelled."""

_SCOPE_KEYS = ("http_version", "method", "scheme", "path", "raw_path", "root_path", "query_string", "headers")
_background: set[asyncio.Task[None]] = set()


def plain_scope(scope: Scope) -> dict[str, Any]:
    """The part of a server's scope that can travel: plain values, and no references to the server."""
    plain = {key: scope[key] for key in _SCOPE_KEYS if key in scope}
    plain["headers"] = [(bytes(name), bytes(value)) for name, value in scope["headers"]]
    for key in ("client", "server"):
        if scope.get(key) is not None:
            plain[key] = tuple(scope[key])
    return plain


class AppEnded(Exception):
    """The app was ended before it had answered."""


async def run_app(
    app: ASGIApp, scope: dict[str, Any], body: bytes, ended: "asyncio.Future[None] | None" = None
) -> AsyncGenerator[Message]:
    """The messages that `app` sends, as it sends them. Nothing waits; body parts that wait already come as one.

    If this generator is closed or cancelled before the app is done, the app gets `http.disconnect`: for vLLM
    that aborts the request in the engine. The app's own exception is raised here.

    Raises:
        AppEnded: `ended` was done first. The app gets `http.disconnect` then too.
    """
    # 2.3: from 2.4 on Starlette does not listen for a disconnect, it waits until a send fails.
    full_scope: Scope = {"type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "extensions": {}, **scope}
    sent = _Outbox()
    gone = asyncio.Event()
    pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        if pending:
            return pending.pop()
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        if not gone.is_set():
            sent.put(message)

    async def serve() -> None:
        try:
            await app(full_scope, receive, send)
        finally:
            sent.close()

    task = asyncio.ensure_future(serve())
    if ended is not None:
        ended.add_done_callback(sent.break_off)
    try:
        while (message := await sent.get()) is not None:
            yield message
        await task
    finally:
        if ended is not None:
            ended.remove_done_callback(sent.break_off)
        gone.set()
        if not task.done():
            # Not awaited here: a generator that is being closed should not wait.
            _keep(asyncio.ensure_future(_see_off(task)))


class _Outbox:
    """Messages on their way from one app to one reader, in order."""

    def __init__(self) -> None:
        self._messages: deque[Message] = deque()
        self._closed = False
        self._broken_off = False
        self._changed = asyncio.Event()

    def put(self, message: Message) -> None:
        """Adjacent body parts are joined: where one ends and the next begins means nothing in HTTP.

        An engine's last step gives several at once (the last token, usage, `[DONE]`, the end).
        """
        last = self._messages[-1] if self._messages else None
        if last is not None and last["type"] == message["type"] == "http.response.body" and last.get("more_body"):
            body = bytes(last.get("body", b"")) + bytes(message.get("body", b""))
            self._messages[-1] = {**message, "body": body}
        else:
            self._messages.append(message)
        self._changed.set()

    def close(self) -> None:
        self._closed = True
        self._changed.set()

    def break_off(self, _: object) -> None:
        self._broken_off = True
        self._changed.set()

    async def get(self) -> Message | None:
        """The next message; None after the last. Raises AppEnded if it was broken off."""
        while not self._messages:
            if self._broken_off and not self._closed:
                raise AppEnded
            if self._closed:
                return None
            self._changed.clear()
            await self._changed.wait()
        return self._messages.popleft()


async def _see_off(task: asyncio.Task[None]) -> None:
    done, _ = await asyncio.wait({task}, timeout=ABORT_GRACE_S)
    if not done:
        task.cancel()
    elif not task.cancelled():
        task.exception()  # nobody is left to hear of it


def _keep(task: asyncio.Task[None]) -> None:
    """The event loop itself holds tasks weakly."""
    _background.add(task)
    task.add_done_callback(_background.discard)
