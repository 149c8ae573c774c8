"""ASGI messages of a fake engine's answers."""

import json
from typing import Any

from hybrid_serve.engine.base import Message, Receive, Send


def error(message: str, code: int) -> dict[str, Any]:
    """As vLLM words it."""
    kind = "BadRequestError" if code == 400 else "InternalServerError"
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


async def disconnect(receive: Receive) -> None:
    """Returns when the client is gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


def start(status: int, content_type: bytes) -> Message:
    return {"type": "http.response.start", "status": status, "headers": [(b"content-type", content_type)]}


def body(content: bytes, *, more: bool) -> Message:
    return {"type": "http.response.body", "body": content, "more_body": more}


def event(value: Any) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


async def respond(send: Send, status: int, content: bytes, content_type: bytes = b"text/plain") -> None:
    await send(start(status, content_type))
    await send(body(content, more=False))


async def respond_json(send: Send, status: int, value: Any) -> None:
    await respond(send, status, json.dumps(value).encode(), b"application/json")
