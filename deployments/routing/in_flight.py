"""Answers that are on their way, and the end of those whose replica left without ending them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from deployments.routing.board import Board
from deployments.routing.reservation import Reservation
from deployments.routing.ticket import ReplicaUnavailable

AFTER_DRAIN_S = 5.0
"""A replica that drains is killed after its time to drain; what it has not sent by now never comes."""


class InFlight:
    """Bounds how long an answer may stay open once its replica is no longer running.

    A process that dies closes its connections, and its answers end at once. A machine that dies may not: then nothing
    ever comes, and only the controller's list of running replicas says so.
    """

    def __init__(self, board: Board) -> None:
        self._answers: dict[str, dict[int, asyncio.Timeout]] = {}
        board.listen_to_replicas(self._on_replica)

    @asynccontextmanager
    async def watched(self, reservation: Reservation) -> AsyncIterator[None]:
        """Ends the block of code if the reservation's replica leaves and the block does not end in the time to drain.

        Raises:
            ReplicaUnavailable: it was ended.
        """
        deadline = asyncio.timeout(None)
        answers = self._answers.setdefault(reservation.replica_id, {})
        try:
            async with deadline:
                answers[reservation.number] = deadline
                yield
        except TimeoutError:
            if deadline.expired():
                raise ReplicaUnavailable(f"replica {reservation.replica_id} left without ending its answer") from None
            raise
        finally:
            answers.pop(reservation.number, None)
            if not answers and self._answers.get(reservation.replica_id) is answers:
                del self._answers[reservation.replica_id]

    def _on_replica(self, name: str, drain_s: float | None) -> None:
        answers = self._answers.get(name)
        if answers:
            when = None if drain_s is None else asyncio.get_running_loop().time() + drain_s + AFTER_DRAIN_S
            for deadline in answers.values():
                deadline.reschedule(when)
