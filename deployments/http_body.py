"""A request's body: read within a limit, parsed once."""

from typing import Any

from pydantic_core import from_json

from hybrid_serve.engine.base import Receive, Scope


class BodyTooLarge(Exception):
    """The request's body is over the limit."""


async def read_body(scope: Scope, receive: Receive, limit: int) -> bytes | None:
    """The whole body; None if the client went away before it was complete.

    Raises:
        BodyTooLarge: without reading on.
    """
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit() and int(value) > limit:
            raise BodyTooLarge
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        part = message.get("body", b"")
        size += len(part)
        if size > limit:
            raise BodyTooLarge
        parts.append(part)
        if not message.get("more_body", False):
            return parts[0] if len(parts) == 1 else b"".join(parts)


def parsed_body(scope: Scope, body: bytes) -> Any:
    """The JSON value of a POST's body; None if it is none, which is vLLM's to refuse."""
    if scope["method"] != "POST" or not _is_json(scope):
        return None
    try:
        return from_json(body)
    except ValueError:
        return None


def _is_json(scope: Scope) -> bool:
    return any(name == b"content-type" and b"json" in value.lower() for name, value in scope["headers"])
