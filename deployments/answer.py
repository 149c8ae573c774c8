"""One answer on its way to the client: messages passed on, or an error in the shape that fits how far it got."""

import logging
from collections.abc import AsyncIterator, Callable

from grpc import RpcError
from ray.exceptions import RayError, RayTaskError
from ray.serve.exceptions import BackPressureError, RayServeException

from deployments.openai_errors import end_stream_with_error, send_error
from deployments.routing.admission import Overloaded
from deployments.routing.ticket import ReplicaUnavailable
from hybrid_serve.engine.base import Message, Send

logger = logging.getLogger("ray.serve")

PIECE = ("body", "more_body")
"""What a head has that carries the first piece of its body, see `deployments.serving.serve_request`."""


def replica_failed(error: Exception) -> bool:
    """True if the replica, or the way to it, failed, so that another one may serve the request.

    An exception of the app in the replica is none: it would come again on every replica.
    """
    if isinstance(error, RayTaskError) and not isinstance(error, ReplicaUnavailable):
        return False
    return isinstance(error, (RayError, RayServeException, ReplicaUnavailable, RpcError))


class Answer:
    """Sends one answer.

    Attributes:
        started: a first byte was sent, so the request can't be given to another replica.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self.started = False
        self._is_stream = False

    async def relay(self, messages: AsyncIterator[Message], on_last: Callable[[], object] = lambda: None) -> None:
        """Sends an app's messages on, one by one; a head may carry the first piece of its body.

        `on_last` is called when the last one is there, before it is sent: a client may send its next request as soon
        as it has it, and before the replica's stream has ended.
        """
        async for message in messages:
            if message["type"] == "http.response.start":
                self.started = True
                self._is_stream = any(
                    name.lower() == b"content-type" and value.startswith(b"text/event-stream")
                    for name, value in message["headers"]
                )
                await self._send({key: value for key, value in message.items() if key not in PIECE})
                if "body" not in message:
                    continue
                message = {"type": "http.response.body", **{key: message[key] for key in PIECE if key in message}}
            if not message.get("more_body", False):
                on_last()
            await self._send(message)

    async def fail(self, error: Exception) -> None:
        """Tells the client what went wrong.

        Raises:
            ConnectionAbortedError: the answer had begun and is no event stream: only a broken connection says so.
        """
        if isinstance(error, Overloaded):
            await self._say(str(error), "ServiceUnavailableError", 503, error.retry_after_s)
        elif isinstance(error, BackPressureError):
            await self._say(f"No replica takes the request now: {error}", "ServiceUnavailableError", 503)
        elif replica_failed(error) and not self.started:
            logger.error("no replica answered: %s", last_line(error))
            await self._say("No replica could serve this request now.", "ServiceUnavailableError", 503)
        elif replica_failed(error):
            logger.error("a replica failed while it answered: %s", last_line(error))
            await self._say("The replica that answered this request failed.", "InternalServerError", 502)
        else:
            logger.error("a request failed", exc_info=error)
            await self._say("The request failed inside the server.", "InternalServerError", 500)

    async def time_out(self, seconds: float) -> None:
        """The request took longer than that."""
        await self._say(f"The request took longer than {seconds:g} s.", "TimeoutError", 504)

    async def _say(self, message: str, kind: str, status: int, retry_after_s: int = 1) -> None:
        if not self.started:
            retry = ((b"retry-after", str(retry_after_s).encode()),) if status == 503 else ()
            await send_error(self._send, message, kind, status, headers=retry)
        elif self._is_stream:
            await end_stream_with_error(self._send, message, kind, status)
        else:
            raise ConnectionAbortedError(message)


def last_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[-1]
