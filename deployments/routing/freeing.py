"""How fast room becomes free: what a client that must come back later is told."""

from collections import deque
from collections.abc import Callable
from math import ceil

WINDOW_S = 30
LONGEST_RETRY_S = 60


class FreeingRate:
    """Tokens released per second, over the last WINDOW_S seconds; kept by the second."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since = clock()
        self._seconds: deque[tuple[int, int]] = deque()
        self._sum = 0

    def record(self, tokens: int) -> None:
        """So many tokens' room was released now."""
        second = int(self._clock())
        if self._seconds and self._seconds[-1][0] == second:
            second, before = self._seconds.pop()
            self._seconds.append((second, before + tokens))
        else:
            self._seconds.append((second, tokens))
        self._sum += tokens
        self._forget()

    def _forget(self) -> None:
        oldest = int(self._clock()) - WINDOW_S
        while self._seconds and self._seconds[0][0] < oldest:
            self._sum -= self._seconds.popleft()[1]

    @property
    def tokens_per_s(self) -> float:
        """0 if nothing was released in the window."""
        self._forget()
        observed = min(float(WINDOW_S), self._clock() - self._since)
        return self._sum / max(1.0, observed)

    def retry_after_s(self, tokens: int, otherwise: float) -> int:
        """Whole seconds, 1 to 60, until `tokens` will have been released at this rate; `otherwise` while none were."""
        rate = self.tokens_per_s
        seconds = tokens / rate if rate > 0 else otherwise
        return max(1, min(LONGEST_RETRY_S, ceil(seconds)))
