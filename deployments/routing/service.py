"""One model as the ingress serves it: its board, its queue, and a way to each pool."""

from collections.abc import Mapping
from typing import Any

from deployments.routing.admission import Admission
from deployments.routing.board import Board
from deployments.routing.in_flight import InFlight
from deployments.routing.need import NO_KV, RequestNeed, generates, need_of
from deployments.routing.reservation import Reservation
from deployments.routing.ticket import Ticket


class ModelService:
    """What stands between a request for a model and the replica that runs it."""

    def __init__(self, name: str, pools: dict[str, Any], board: Board) -> None:
        """`pools`: pool name -> streaming handle on `Replica.handle` of that pool's deployment."""
        self.name = name
        self.board = board
        self.admission = Admission(board)
        self.in_flight = InFlight(board)
        self._pools = dict(pools)

    @property
    def pools(self) -> tuple[str, ...]:
        """Names of the pools that requests may go to."""
        return tuple(self._pools)

    def add_pools(self, pools: Mapping[str, Any]) -> None:
        """Further ways, as in the constructor. None is ever closed: a pool that is gone has no replica on the board."""
        self._pools |= pools

    def need(self, method: str, path: str, body: Any) -> RequestNeed:
        """Of a request; `body` parsed, None if it is no JSON."""
        return need_of(body, self.board.estimates) if generates(method, path, body) else NO_KV

    def call(self, reservation: Reservation, need: RequestNeed, scope: dict[str, Any], body: bytes) -> Any:
        """The messages of the answer, from the replica that the reservation is on (a DeploymentResponseGenerator)."""
        ticket = Ticket(
            replica_id=reservation.replica_id,
            ingress_id=self.board.ingress_id,
            blocks=reservation.blocks,
            sequences=reservation.sequences,
            prompt_bytes=need.prompt_bytes,
        )
        return self._pools[reservation.pool].remote(scope, body, ticket)
