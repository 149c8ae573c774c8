"""One request in an engine's app: its messages, or word that another replica should serve it."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from deployments.asgi import AppEnded, run_app
from deployments.routing.accounts import Accounts
from deployments.routing.ticket import ReplicaDraining, ReplicaUnavailable, Ticket
from hybrid_serve.engine.base import Engine, EngineStartError, Message

logger = logging.getLogger("ray.serve")

ERROR_EVENT_BYTES = 100
"""An event that says that a stream broke has the word `error` so early: `data: {"error": ...`, `event: error ...`."""

ERROR_EVENTS = (b'data: {"error"', b"\nevent: error")
"""In a stream, and in no text of a model: that is JSON, whose quotes and line ends are escaped."""


async def serve_request(
    engine: Engine,
    accounts: Accounts,
    scope: dict[str, Any],
    body: bytes,
    ticket: Ticket | None,
    ended: "asyncio.Future[None] | None" = None,
) -> AsyncGenerator[Message]:
    """The ASGI messages of one request, unbatched; its room is accounted for until the last one or until it is left.

    The answer's head waits for the first piece of its body, and carries it as its `body` and `more_body`: one message
    less between the first token and the client. vLLM sends the head of a stream before the engine has seen
    the request, and up to then an engine that dies is this replica's problem alone.

    Closing or cancelling this generator aborts the request in the engine; so does `ended`, once it is done.

    Raises:
        ReplicaUnavailable: the engine is dead and nothing of the answer was handed out; or it was ended, and something
            was.
        ReplicaDraining: it was ended, and nothing of the answer was handed out.
    """
    head: Message | None = None
    begun = failed = False
    with accounts.holding(ticket):
        try:
            async with aclosing(run_app(engine.app, scope, body, ended)) as messages:
                async for message in messages:
                    if begun:
                        failed = failed or _is_error_event(message)
                        yield message
                    elif head is None:
                        head = message
                        if message["status"] >= 500:
                            await _refuse_if_dead(engine)
                    else:
                        if b"error" in message.get("body", b"")[:ERROR_EVENT_BYTES]:
                            await _refuse_if_dead(engine)
                        begun, failed = True, _is_error_event(message)
                        yield {**message, **head}
            if head is not None and not begun:
                yield head
        except ReplicaUnavailable:
            raise
        except AppEnded:
            if begun:
                raise ReplicaUnavailable("its time to drain was over before the answer had ended") from None
            raise ReplicaDraining("its time to drain was over before the answer had begun") from None
        except Exception:
            if not begun:
                await _refuse_if_dead(engine)
            accounts.ended(ticket, failed=True)
            raise
        if head is not None:
            if head["status"] < 400:
                accounts.answered(ticket)
            accounts.ended(ticket, failed=failed or head["status"] >= 500)


def _is_error_event(message: Message) -> bool:
    body = message.get("body", b"")
    return any(event in body for event in ERROR_EVENTS) or body.startswith(b"event: error")


async def _refuse_if_dead(engine: Engine) -> None:
    try:
        await engine.check_health()
    except EngineStartError as error:
        logger.error("%s", error)
        raise ReplicaUnavailable(str(error)) from None
