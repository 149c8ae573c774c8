"""A model service over stand-ins for Ray Serve's handles, for tests of the ingress without Ray."""

from collections.abc import AsyncGenerator
from typing import Any

from deployments.routing.service import ModelService
from deployments.routing.ticket import Ticket
from hybrid_serve.engine.base import Message
from tests.routing_fleet import Fleet, facts


class Response:
    """Stands for a DeploymentResponseGenerator."""

    def __init__(self, messages: AsyncGenerator[Message]) -> None:
        self._messages = messages
        self.cancelled = False

    def __aiter__(self) -> AsyncGenerator[Message]:
        return self._messages

    def cancel(self) -> None:
        self.cancelled = True


class Pool:
    """Stands for a streaming handle on `Replica.handle`. `run(scope, body, ticket)` makes the messages."""

    def __init__(self, run: Any) -> None:
        self._run = run
        self.responses: list[Response] = []
        self.tickets: list[Ticket] = []

    def remote(self, scope: dict[str, Any], body: bytes, ticket: Ticket) -> Response:
        self.tickets.append(ticket)
        self.responses.append(Response(self._run(scope, body, ticket)))
        return self.responses[-1]


def service_of(name: str, *, blocks: int = 1000, drain_s: float = 60.0, **pools: Pool) -> ModelService:
    """A model with one replica of `blocks` KV blocks in each pool; the replica is named as its pool."""
    fleet = Fleet()
    for pool in pools:
        fleet.with_pool(pool, {pool: facts(blocks, pool=pool, drain_s=drain_s)})
    return ModelService(name, pools, fleet.board)
