"""The ingress: an ASGI forwarder in front of the replicas. It adds limits; the API is vLLM's."""

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

from pydantic_core import from_json
from ray.exceptions import RayError
from ray.serve.exceptions import BackPressureError, RayServeException
from ray.serve.handle import DeploymentHandle

from deployments.asgi import plain_scope
from deployments.local_grpc import keep_grpc_local
from deployments.openai_errors import end_stream_with_error, send_error
from hybrid_serve.engine.base import Message, Receive, Scope, Send

logger = logging.getLogger("ray.serve")


class BodyTooLarge(Exception):
    """The request's body is over the limit."""


class Ingress:
    """The deployment around a `Forwarder`; wrap it with `serve.ingress()`."""

    def __init__(self, services: dict[str, dict[str, DeploymentHandle]], check_model: bool = True) -> None:
        """`services` are the pools' deployments by model name and pool name.

        `check_model=False` leaves the model name to vLLM: with LoRA adapters it knows more names than one.
        """
        keep_grpc_local()
        model_name, pools = next(iter(services.items()))
        pool = next(iter(pools.values()))
        # gRPC between replicas costs less per chunk than Ray's streaming object references.
        call = pool.options(
            method_name="handle",
            stream=True,
            _by_reference=False,
            request_serialization="pickle",
            response_serialization="pickle",
        )
        self._forwarder = Forwarder(call, model_name if check_model else None)

    async def __serve_build_asgi_app__(self) -> "Forwarder":
        return self._forwarder

    def reconfigure(self, limits: Any) -> None:
        """Takes new limits. Idempotent; never raises, which would kill the replica."""
        try:
            self._forwarder.max_body = int(limits["max_body"])
            self._forwarder.request_timeout_s = float(limits["request_timeout_s"])
        except (TypeError, KeyError, ValueError) as error:
            logger.error("ignored limits %r: %r", limits, error)


class Forwarder:
    """An ASGI app that forwards each request to a replica and streams back what the engine's own app answers.

    What it answers itself: a body over the limit (413), a model name that is not served (404, in vLLM's words), no
    replica that takes the request (503), a request that takes too long (504), a replica that dies (502, or an
    error event in a stream that has begun).

    Attributes:
        max_body: bytes of the largest request body.
        request_timeout_s: seconds from a request's arrival to its last byte.
    """

    def __init__(self, replicas: Any, only_model: str | None) -> None:
        """`replicas` is a streaming handle on `Replica.handle`; requests for other models than `only_model` are
        refused, None lets all in."""
        self._replicas = replicas
        self._only_model = only_model
        self.max_body = 32 * 2**20
        self.request_timeout_s = 3600.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
        elif scope["type"] == "http":
            await self._forward(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1003, "reason": "websockets are not served"})

    async def _forward(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            body = await _read_body(scope, receive, self.max_body)
        except BodyTooLarge:
            message = f"The request body is larger than {self.max_body} bytes, the limit of this server."
            await send_error(send, message, "BadRequestError", 413, headers=((b"connection", b"close"),))
            return
        if body is None:
            return
        unknown = self._unknown_model(scope, body)
        if unknown is not None:
            message = f"The model `{unknown}` does not exist."
            await send_error(send, message, "NotFoundError", 404, param="model")
            return
        await _Answer(send).relay(self._replicas.remote(plain_scope(scope), body), self.request_timeout_s)

    def _unknown_model(self, scope: Scope, body: bytes) -> str | None:
        """The model that the request names, if it is not ours. What can't be read is vLLM's to refuse."""
        if self._only_model is None or scope["method"] != "POST" or not _is_json(scope):
            return None
        try:
            request = from_json(body)
        except ValueError:
            return None
        model = request.get("model") if isinstance(request, dict) else None
        return model if isinstance(model, str) and model not in ("", self._only_model) else None


class _Answer:
    """One answer on its way to the client."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._started = False
        self._is_stream = False

    async def relay(self, messages: Any, timeout_s: float) -> None:
        """Sends a DeploymentResponseGenerator's messages on, and cancels it if it is not read to its end."""
        ended = False
        try:
            async with asyncio.timeout(timeout_s):
                await self._relay(messages)
            ended = True
        except BackPressureError as error:
            await self._fail(f"No replica takes the request now: {error}", "ServiceUnavailableError", 503)
        except TimeoutError:
            await self._fail(f"The request took longer than {timeout_s:g} s.", "TimeoutError", 504)
        except (RayError, RayServeException) as error:
            logger.error("a replica failed while it answered: %s", _last_line(error))
            await self._fail("The replica that answered this request failed.", "InternalServerError", 502)
        except Exception:
            logger.exception("a request failed")
            await self._fail("The request failed inside the server.", "InternalServerError", 500)
        finally:
            if not ended:
                messages.cancel()

    async def _relay(self, messages: AsyncIterator[Message]) -> None:
        async for message in messages:
            if message["type"] == "http.response.start":
                self._started = True
                self._is_stream = any(
                    name.lower() == b"content-type" and value.startswith(b"text/event-stream")
                    for name, value in message["headers"]
                )
            await self._send(message)

    async def _fail(self, message: str, kind: str, status: int) -> None:
        if not self._started:
            retry = ((b"retry-after", b"1"),) if status == 503 else ()
            await send_error(self._send, message, kind, status, headers=retry)
        elif self._is_stream:
            await end_stream_with_error(self._send, message, kind, status)
        else:
            raise ConnectionAbortedError(message)


async def _read_body(scope: Scope, receive: Receive, limit: int) -> bytes | None:
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


def _is_json(scope: Scope) -> bool:
    return any(name == b"content-type" and b"json" in value.lower() for name, value in scope["headers"])


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return


def _last_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[-1]
