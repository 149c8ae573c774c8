"""The bounded queue in front of a board: in order, with room for what fits, and an honest no."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice

from deployments.routing.board import Board
from deployments.routing.freeing import FreeingRate
from deployments.routing.need import NO_KV, RequestNeed
from deployments.routing.reservation import Reservation

MAX_QUEUED = 1000
MAX_QUEUE_S = 30.0
MAX_OVERTAKEN = 16
"""Times a waiting request may be passed on a replica that could hold it; then that replica is kept for it."""

LOOK_AHEAD = 64
"""Waiting requests that are looked at for one that fits: it bounds what a release costs."""

CERTAINLY_TOO_LONG = 2.0
"""A prompt estimated at so many times max_model_len is longer than that: estimates are not as wrong."""

TICK_S = 1.0


class Overloaded(Exception):
    """The fleet is full. `retry_after_s`: whole seconds after which the request would find room at the present rate."""

    def __init__(self, message: str, retry_after_s: int) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


@dataclass(eq=False)
class _Waiting:
    """One request in the queue. `overtaken`: times another was placed before it where it could have gone."""

    number: int
    need: RequestNeed
    place: "asyncio.Future[Reservation]"
    overtaken: int = 0


class Admission:
    """Gives each request a reservation as soon as one is due, first come, first served.

    A request that does not fit does not stop smaller ones behind it, but each waiting request is passed at most
    `max_overtaken` times on the replicas that could hold it: these then take nothing else until it fits.
    One event loop owns it; the board tells it when there is room.
    """

    def __init__(
        self,
        board: Board,
        *,
        max_queued: int = MAX_QUEUED,
        max_queue_s: float = MAX_QUEUE_S,
        max_overtaken: int = MAX_OVERTAKEN,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.max_queued = max_queued
        self.max_queue_s = max_queue_s
        self._max_overtaken = max_overtaken
        self._board = board
        self._clock = clock
        self._freeing = FreeingRate(clock)
        self._queue: OrderedDict[int, _Waiting] = OrderedDict()
        self._queued_tokens = 0
        self._numbers = 0
        self._tick: asyncio.TimerHandle | None = None
        self._pumping = False
        board.listen(self._on_room)

    @property
    def queued_requests(self) -> int:
        """Requests that wait."""
        return len(self._queue)

    @property
    def queued_tokens(self) -> int:
        """Estimated tokens, prompt and output, of the requests that wait."""
        return self._queued_tokens

    def waiting(self) -> Iterator[RequestNeed]:
        """What the requests that wait need, in their order."""
        return (each.need for each in self._queue.values())

    async def admit(self, need: RequestNeed, *, again: bool = False, patience_s: float | None = None) -> Reservation:
        """A reservation for the request, as soon as it is its turn; the caller releases it on the board.

        A prompt that is certainly too long for every replica is let through without KV: the engine refuses it in its
        own words. One that only seems too long is counted as if it were as long as it can be.

        Args:
            again: the request was admitted before and its replica failed: it goes to the queue's front.
            patience_s: seconds that it may still wait; `max_queue_s` if it is new.

        Raises:
            Overloaded: the queue is full, or no room came in time.
        """
        patience_s = self.max_queue_s if patience_s is None else patience_s
        need = self._counted(need)
        if patience_s <= 0:
            raise self._overloaded("no room came free in the time that a request may wait", need)
        if not self._queue or not need.sequences:
            reservation = self._board.reserve(need)
            if reservation is not None:
                return reservation
        if len(self._queue) >= self.max_queued and not again:
            raise self._overloaded(f"{len(self._queue)} requests are waiting for room, which is the limit", need)
        waiting = self._enqueue(need, front=again or not need.sequences)
        try:
            self._pump()
            await asyncio.wait((waiting.place,), timeout=patience_s)
        except BaseException:
            self._withdraw(waiting)
            raise
        if waiting.place.done():
            return waiting.place.result()
        self._withdraw(waiting)
        raise self._overloaded(f"no room came free in {round(patience_s, 2):g} s", need)

    def _counted(self, need: RequestNeed) -> RequestNeed:
        if not self._board.never_fits(need):
            return need
        longest = self._board.max_model_len or 0
        cut = replace(need, prompt_tokens=max(1, longest - 1), output_tokens=1)
        certain = need.prompt_tokens > CERTAINLY_TOO_LONG * longest
        return NO_KV if certain or self._board.never_fits(cut) else cut

    def _overloaded(self, why: str, need: RequestNeed) -> Overloaded:
        ahead = self._queued_tokens + need.tokens * need.sequences
        retry = self._freeing.retry_after_s(ahead, otherwise=self.max_queue_s)
        return Overloaded(f"All replicas are full: {why}.", retry)

    def _enqueue(self, need: RequestNeed, *, front: bool) -> _Waiting:
        self._numbers += 1
        waiting = _Waiting(self._numbers, need, asyncio.get_running_loop().create_future())
        self._queue[waiting.number] = waiting
        if front:
            self._queue.move_to_end(waiting.number, last=False)
        self._queued_tokens += need.tokens * need.sequences
        if self._tick is None:
            self._tick = asyncio.get_running_loop().call_later(TICK_S, self._on_tick)
        return waiting

    def _remove(self, waiting: _Waiting) -> None:
        if self._queue.pop(waiting.number, None) is not None:
            self._queued_tokens -= waiting.need.tokens * waiting.need.sequences

    def _withdraw(self, waiting: _Waiting) -> None:
        """The request goes away; if a place was given to it in the meantime, that is given back."""
        self._remove(waiting)
        if waiting.place.done():
            self._board.release(waiting.place.result())
        waiting.place.cancel()
        self._pump()

    def _on_room(self, tokens: int) -> None:
        if tokens:
            self._freeing.record(tokens)
        self._pump()

    def _on_tick(self) -> None:
        """What becomes possible with time alone: a suspect that may be tried again."""
        self._tick = None
        self._pump()
        if self._queue:
            self._tick = asyncio.get_running_loop().call_later(TICK_S, self._on_tick)

    def _pump(self) -> None:
        """Places what fits, in order, as far as overtaking allows."""
        if not self._queue or self._pumping:
            return
        self._pumping = True
        try:
            self._place(list(islice(self._queue.values(), LOOK_AHEAD)))
        finally:
            self._pumping = False

    def _place(self, looked_at: list[_Waiting]) -> None:
        blocked: list[_Waiting] = []
        closed: set[str] = set()
        smallest: RequestNeed | None = None  # of those that found no room: a larger one finds none either
        for waiting in looked_at:
            need = waiting.need
            reservation = None
            hopeless = smallest is not None and need.tokens >= smallest.tokens and need.sequences >= smallest.sequences
            if not hopeless:
                reservation = self._board.reserve(need, closed)
            if reservation is None:
                if need.sequences and (smallest is None or need.tokens < smallest.tokens):
                    smallest = need
                blocked.append(waiting)
                if waiting.overtaken >= self._max_overtaken:
                    closed |= self._board.holders(need)
                continue
            self._remove(waiting)
            waiting.place.set_result(reservation)
            if reservation.sequences:
                self._count_overtaken(blocked, reservation.replica_id, closed)

    def _count_overtaken(self, blocked: list[_Waiting], replica_id: str, closed: set[str]) -> None:
        for passed in blocked:
            holders = self._board.holders(passed.need)
            if replica_id in holders:
                passed.overtaken += 1
                if passed.overtaken >= self._max_overtaken:
                    closed |= holders

    def check_integrity(self) -> None:
        """Raises AssertionError, with numbers, if the queue's accounts are wrong or its order was broken."""
        self._board.check_integrity()
        tokens = sum(waiting.need.tokens * waiting.need.sequences for waiting in self._queue.values())
        assert tokens == self._queued_tokens, f"{tokens} tokens wait, {self._queued_tokens} are accounted for"
        for number, waiting in self._queue.items():
            assert number == waiting.number and not waiting.place.done(), f"request {number} waits and has its place"
            assert waiting.overtaken <= self._max_overtaken, (
                f"request {number} was overtaken {waiting.overtaken} times, at most {self._max_overtaken} are allowed"
            )
