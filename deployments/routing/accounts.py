"""A replica's side of routing: which ingress holds what here, and what requests turned out to need."""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from deployments.routing.facts import ReplicaLoad
from deployments.routing.ticket import Ticket
from hybrid_serve.engine.base import EngineStats
from hybrid_serve.plan.capacity import ceil_div

REMEMBERED_REQUESTS = 500
"""Measured means follow the traffic: at so many requests, those before count half."""

BYTES_PER_TOKEN_RANGE = (0.5, 16.0)
"""What is measured outside of it is no text's."""


@dataclass
class _Held:
    blocks: int = 0
    sequences: int = 0


class Accounts:
    """Reservations on this replica by ingress, and its reports. One event loop owns it.

    Attributes:
        requests, errors: requests that generate, since the engine's start: answered to the end, and answered 500 or
            above or broken off by an error. A client that went away is neither, nor is what was left to another
            replica.
    """

    def __init__(self) -> None:
        self.requests = 0
        self.errors = 0
        self._held: dict[str, _Held] = {}
        self._sizes: Counter[int] = Counter()
        self._reports = 0
        self._measured = Measurements()

    @contextmanager
    def holding(self, ticket: Ticket | None) -> Iterator[None]:
        """The ticket's room is held until the block ends, however it ends."""
        if ticket is None or not ticket.sequences:
            yield
            return
        held = self._held.setdefault(ticket.ingress_id, _Held())
        held.blocks += ticket.blocks
        held.sequences += ticket.sequences
        size = ceil_div(ticket.blocks, ticket.sequences)
        self._sizes[size] += 1
        try:
            yield
        finally:
            self._sizes[size] -= 1
            if not self._sizes[size]:
                del self._sizes[size]
            held.blocks -= ticket.blocks
            held.sequences -= ticket.sequences
            if not held.sequences:
                del self._held[ticket.ingress_id]

    def answered(self, ticket: Ticket | None) -> None:
        """The engine has answered the ticket's request to its end."""
        if ticket is None:
            self._measured.request(0)
        elif ticket.sequences or ticket.prompt_bytes:
            self._measured.request(ticket.prompt_bytes)

    def ended(self, ticket: Ticket | None, *, failed: bool) -> None:
        """An answer came to its end, or to an error."""
        if ticket is not None and not ticket.sequences:
            return
        if failed:
            self.errors += 1
        else:
            self.requests += 1

    def engine_ended(self, stats: EngineStats | None) -> None:
        """The engine ends with these totals (None: nothing is known of them); the next one begins at 0."""
        if stats is not None:
            self._measured.take(stats)
        self._measured.restart()
        self.requests = self.errors = 0

    @property
    def reserved(self) -> dict[str, tuple[int, int]]:
        """Ingress id -> (blocks, sequences)."""
        return {ingress: (held.blocks, held.sequences) for ingress, held in self._held.items()}

    @property
    def largest_blocks(self) -> int:
        """Of one sequence among the reservations; 0 without any."""
        return max(self._sizes, default=0)

    def report(
        self,
        stats: EngineStats,
        *,
        healthy: bool,
        draining: bool = False,
        facts: Mapping[str, Any] | None = None,
    ) -> ReplicaLoad:
        """The next report to routers; see `ReplicaLoad`."""
        self._reports += 1
        self._measured.take(stats)
        return ReplicaLoad(
            sequence=self._reports,
            healthy=healthy,
            draining=draining,
            kv_usage=stats.kv_usage,
            running=stats.running,
            waiting=stats.waiting,
            preemptions=stats.preemptions,
            reserved=self.reserved,
            bytes_per_token=self._measured.bytes_per_token,
            mean_output_tokens=self._measured.mean_output_tokens,
            measured_requests=int(self._measured.requests),
            facts=facts,
        )


class Measurements:
    """Means over finished requests: bytes of text from the tickets, tokens from the engine's totals.

    The two can't be matched request by request, so a period in which a prompt was no text is left out of the bytes.
    """

    def __init__(self) -> None:
        self.requests = 0.0
        self._output_tokens = 0.0
        self._bytes = 0.0
        self._tokens = 0.0
        self._period_bytes = 0
        self._only_text = True
        self._before = (0, 0, 0)

    def request(self, text_bytes: int) -> None:
        """A request was answered; 0 bytes: its prompt's text is not known."""
        self._period_bytes += text_bytes
        self._only_text &= text_bytes > 0

    def restart(self) -> None:
        """Another engine begins, whose totals are 0."""
        self._before = (0, 0, 0)
        self._period_bytes, self._only_text = 0, True

    def take(self, stats: EngineStats) -> None:
        """The engine's totals now: ends a period."""
        now = (stats.finished_requests, stats.finished_prompt_tokens, stats.finished_generation_tokens)
        requests, prompt_tokens, output_tokens = (new - old for new, old in zip(now, self._before, strict=True))
        self._before = now
        self.requests += requests
        self._output_tokens += output_tokens
        if self._only_text:
            self._bytes += self._period_bytes
            self._tokens += prompt_tokens
        self._period_bytes, self._only_text = 0, True
        if self.requests > REMEMBERED_REQUESTS:
            for total in ("requests", "_output_tokens", "_bytes", "_tokens"):
                setattr(self, total, getattr(self, total) / 2)

    @property
    def bytes_per_token(self) -> float | None:
        """None until it is known."""
        if not self._bytes or not self._tokens:
            return None
        least, most = BYTES_PER_TOKEN_RANGE
        return max(least, min(most, self._bytes / self._tokens))

    @property
    def mean_output_tokens(self) -> float | None:
        """None until it is known."""
        return self._output_tokens / self.requests if self.requests else None
