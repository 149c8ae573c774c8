"""The requests on one replica: a door that can be closed, and an end for those inside."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from deployments.routing.ticket import ReplicaDraining

ABORT_S = 1.0
"""Seconds that ended requests get to leave, so that their engine hears of it."""


class RequestsHere:
    """Counts what runs. One event loop owns it. Closed at first.

    Attributes:
        is_open: requests are let in.
    """

    def __init__(self) -> None:
        self.is_open = False
        self._running: set[asyncio.Future[None]] = set()
        self._changed = asyncio.Event()

    @property
    def running(self) -> int:
        """Requests that have not come to their end."""
        return len(self._running)

    def open(self) -> None:
        self.is_open = True

    def close(self) -> None:
        self.is_open = False

    @contextmanager
    def one(self) -> Iterator["asyncio.Future[None]"]:
        """A request, until the block ends. What it gets is done when the request must end.

        Raises:
            ReplicaDraining: the door is closed.
        """
        if not self.is_open:
            raise ReplicaDraining("it is about to run another engine")
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._running.add(ended)
        try:
            yield ended
        finally:
            self._running.discard(ended)
            ended.cancel()
            self._changed.set()

    async def drained(self, seconds: float) -> int:
        """Closes the door and waits until nothing runs; what runs longer than that is ended. Answers how many were."""
        self.close()
        if await self._emptied(seconds):
            return 0
        left = [ended for ended in self._running if not ended.done()]
        for ended in left:
            ended.set_result(None)
        await self._emptied(ABORT_S)
        return len(left)

    async def _emptied(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                while self._running:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True
