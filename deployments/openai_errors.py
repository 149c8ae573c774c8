"""Errors in the shape that OpenAI clients read and vLLM writes (vllm/entrypoints/serve/engine/protocol.py)."""

import json

from hybrid_serve.engine.base import Send


def error_json(message: str, kind: str, status: int, param: str | None = None) -> bytes:
    """`{"error": {"message": ..., "type": ..., "param": ..., "code": status}}`."""
    return json.dumps({"error": {"message": message, "type": kind, "param": param, "code": status}}).encode()


async def send_error(
    send: Send,
    message: str,
    kind: str,
    status: int,
    *,
    param: str | None = None,
    headers: tuple[tuple[bytes, bytes], ...] = (),
) -> None:
    """A whole response."""
    body = error_json(message, kind, status, param)
    length = (b"content-length", str(len(body)).encode())
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [(b"content-type", b"application/json"), length, *headers],
        }
    )
    await send({"type": "http.response.body", "body": body, "more_body": False})


async def end_stream_with_error(send: Send, message: str, kind: str, status: int) -> None:
    """The end of an event stream that broke, as vLLM ends one: an error event, then `[DONE]`."""
    events = b"data: " + error_json(message, kind, status) + b"\n\ndata: [DONE]\n\n"
    await send({"type": "http.response.body", "body": events, "more_body": False})
