"""Drives an ASGI app in this process, message by message."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hybrid_serve.engine.base import ASGIApp, Message


def http_scope(method: str, path: str, headers: dict[str, str] | None = None) -> dict[str, Any]:
    return {
        "type": "http",
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [(name.lower().encode(), value.encode()) for name, value in (headers or {}).items()],
        "client": ["127.0.0.1", 1],
        "server": ["127.0.0.1", 2],
        "asgi": {"version": "3.0"},
        "state": {"not": "plain"},
    }


@dataclass
class Exchange:
    """What was sent to the client of one request."""

    messages: list[Message] = field(default_factory=list)

    @property
    def status(self) -> int:
        status: int = self.messages[0]["status"]
        return status

    @property
    def headers(self) -> dict[str, str]:
        return {name.decode(): value.decode() for name, value in self.messages[0]["headers"]}

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.messages[1:])

    @property
    def complete(self) -> bool:
        return bool(self.messages) and not self.messages[-1].get("more_body", False)


async def exchange(
    app: ASGIApp, scope: dict[str, Any], *parts: bytes, leave_when: Callable[[Exchange], bool] | None = None
) -> Exchange:
    """One request whose body comes in `parts`; the client leaves as soon as `leave_when` is true."""
    told = Exchange()
    left = asyncio.Event()
    bodies = list(parts or (b"",))

    async def receive() -> Message:
        if bodies:
            body = bodies.pop(0)
            return {"type": "http.request", "body": body, "more_body": bool(bodies)}
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        told.messages.append(message)
        if leave_when is not None and leave_when(told):
            left.set()

    await app(scope, receive, send)
    return told
