"""The ingress's ASGI app: model name, limits, admission, a replica, and another one if that fails in time."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from deployments.answer import Answer, last_line, replica_failed
from deployments.asgi import plain_scope
from deployments.http_body import BodyTooLarge, parsed_body, read_body
from deployments.model_list import list_models
from deployments.openai_errors import send_error
from deployments.routing.admission import Overloaded
from deployments.routing.need import RequestNeed
from deployments.routing.service import ModelService
from deployments.routing.ticket import ReplicaDraining, ReplicaFull
from hybrid_serve.engine.base import Receive, Scope, Send

logger = logging.getLogger("ray.serve")

RETRIES = 2


class Forwarder:
    """Forwards each request to a replica of its model, and streams back what the engine's own app answers.

    What it answers itself: a body over the limit (413), a model that is not served (404, in vLLM's words), a fleet that
    is full (503 with Retry-After), a request that takes too long (504), a replica that fails in the middle (an error
    event in a stream, otherwise a broken connection), /health, and /v1/models where there are several.

    Attributes:
        check_model: False leaves names that are not served to the first model's vLLM.
        max_body: bytes of the largest request body.
        request_timeout_s: seconds from a request's arrival to its last byte.
        retries: further replicas that a request is given to if one fails before the first byte of its answer.
    """

    def __init__(
        self,
        services: Mapping[str, ModelService],
        *,
        check_model: bool = True,
        on_rejected: Callable[[str], None] = lambda reason: None,
    ) -> None:
        """`on_rejected` is told the reason of each 503: `full` or `no_replica`."""
        self.serve(services)
        self.check_model = check_model
        self._on_rejected = on_rejected
        self.max_body = 32 * 2**20
        self.request_timeout_s = 3600.0
        self.retries = RETRIES

    def serve(self, services: Mapping[str, ModelService]) -> None:
        """These models are served from now on; requests that are on their way end where they are."""
        self._services = dict(services)
        self._first = next(iter(self._services.values()))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
        elif scope["type"] == "http":
            await self._forward(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1003, "reason": "websockets are not served"})

    async def _forward(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            body = await read_body(scope, receive, self.max_body)
        except BodyTooLarge:
            message = f"The request body is larger than {self.max_body} bytes, the limit of this server."
            await send_error(send, message, "BadRequestError", 413, headers=((b"connection", b"close"),))
            return
        if body is None:
            return
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        route = (scope["method"], path)
        if route == ("GET", "/health"):
            await self._health(send)
        elif route == ("GET", "/v1/models") and (len(self._services) > 1 or not self._first.board.can_serve):
            await list_models(self._services, plain_scope(scope), send)
        else:
            await self._to_a_replica(scope, path, body, send)

    async def _to_a_replica(self, scope: Scope, path: str, body: bytes, send: Send) -> None:
        request = parsed_body(scope, body)
        name = request.get("model") if isinstance(request, dict) else None
        name = name if isinstance(name, str) and name else None
        service = self._first if name is None else self._services.get(name)
        if service is None and not self.check_model:
            service = self._first
        if service is None:
            await send_error(send, f"The model `{name}` does not exist.", "NotFoundError", 404, param="model")
            return
        need = service.need(scope["method"], path, request)
        if name is None and need.sequences and len(self._services) > 1:
            names = ", ".join(f"`{name}`" for name in self._services)
            message = f"Several models are served here: give `model`, one of {names}."
            await send_error(send, message, "BadRequestError", 400, param="model")
            return
        await self._answer(service, need, plain_scope(scope), body, send)

    async def _answer(
        self, service: ModelService, need: RequestNeed, scope: dict[str, Any], body: bytes, send: Send
    ) -> None:
        answer = Answer(send)
        try:
            async with asyncio.timeout(self.request_timeout_s):
                await self._serve(service, need, scope, body, answer)
        except TimeoutError:
            await answer.time_out(self.request_timeout_s)
        except Exception as error:
            if not answer.started and isinstance(error, Overloaded):
                self._on_rejected("full")
            elif not answer.started and replica_failed(error):
                self._on_rejected("no_replica")
            await answer.fail(error)

    async def _serve(
        self, service: ModelService, need: RequestNeed, scope: dict[str, Any], body: bytes, answer: Answer
    ) -> None:
        """One attempt after another; `retries` and the patience of all attempts together are those of its beginning."""
        now = asyncio.get_running_loop().time
        retries, patience_s = self.retries, service.admission.max_queue_s
        failed, again = 0, False
        while True:
            since = now()
            reservation = await service.admission.admit(need, again=again, patience_s=patience_s)
            patience_s -= now() - since
            since, again, messages = now(), True, None
            try:
                messages = service.call(reservation, need, scope, body)
                async with service.in_flight.watched(reservation):
                    await answer.relay(messages, partial(service.board.release, reservation))
                messages = None
                return
            except ReplicaFull:
                service.board.refused(reservation)
                patience_s -= now() - since
            except ReplicaDraining:
                service.board.draining(reservation)
                if answer.started:
                    raise
                patience_s -= now() - since
            except Exception as error:
                if not replica_failed(error):
                    raise
                service.board.suspect(reservation.replica_id)
                if answer.started or failed >= retries:
                    raise
                failed += 1
                logger.warning("replica %s failed, trying another: %s", reservation.replica_id, last_line(error))
            finally:
                if messages is not None:
                    messages.cancel()
                service.board.release(reservation)

    async def _health(self, send: Send) -> None:
        """200 if any replica can serve, as vLLM answers it: without a body."""
        status = 200 if any(service.board.can_serve for service in self._services.values()) else 503
        await send({"type": "http.response.start", "status": status, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
