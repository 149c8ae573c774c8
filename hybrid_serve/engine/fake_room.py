"""The fake engine's KV blocks: requests hold some, and wait in order for enough."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class FakeRoom:
    """Blocks and sequences that run at once. A request larger than all blocks runs alone."""

    def __init__(self, num_blocks: int, max_num_seqs: int) -> None:
        self._num_blocks = num_blocks
        self._max_num_seqs = max_num_seqs
        self._used = 0
        self.running = 0
        self._turns: list[tuple[int, asyncio.Future[None]]] = []

    @property
    def waiting(self) -> int:
        return sum(not turn.cancelled() for _, turn in self._turns)

    @property
    def usage(self) -> float:
        """Share of the blocks in use, 0 to 1."""
        return min(1.0, self._used / self._num_blocks) if self._num_blocks else 0.0

    @asynccontextmanager
    async def hold(self, blocks: int) -> AsyncIterator[None]:
        """Waits for the blocks, and holds them until the block of code ends."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._turns.append((blocks, turn))
        self._next()
        try:
            await turn
            yield
        finally:
            if turn.done() and not turn.cancelled():
                self._used -= blocks
                self.running -= 1
            self._next()

    def _next(self) -> None:
        while self._turns and self.running < self._max_num_seqs:
            blocks, turn = self._turns[0]
            if turn.cancelled():
                self._turns.pop(0)
                continue
            if self.running and self._used + blocks > self._num_blocks:
                return
            self._turns.pop(0)
            self._used += blocks
            self.running += 1
            turn.set_result(None)
