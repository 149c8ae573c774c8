"""Whose turn it is, so that each replica's share of the requests follows its weight."""

CREDIT_LIMIT = 2.0
"""Requests that a replica may be ahead of or behind its share: so much of what it got for a prefix is paid back."""


class Shares:
    """Smooth weighted round robin, in which weights may change with every turn and candidates may come and go.

    At each turn every candidate earns its weight's share of one request; the one with the most credit gets the turn
    and pays one request. Over many turns each is chosen as often as its weights say, and never in bursts. Requests of
    unlike size are counted apart (`kind`), so that both their number and their sizes are shared out.
    """

    def __init__(self) -> None:
        self._credits: dict[int, dict[str, float]] = {}

    def turn(self, kind: int, weights: dict[str, float]) -> str:
        """The candidate that is furthest behind its share. Changes nothing.

        Args:
            weights: candidate -> weight above 0; not empty.
        """
        credits = self._credits.get(kind, {})
        total = sum(weights.values())
        return max(weights, key=lambda name: (credits.get(name, 0.0) + weights[name] / total, weights[name], name))

    def charge(self, kind: int, weights: dict[str, float], chosen: str) -> None:
        """The turn went to `chosen`, whoever's it was."""
        credits = self._credits.setdefault(kind, {})
        total = sum(weights.values())
        for name, weight in weights.items():
            credit = credits.get(name, 0.0) + weight / total - (name == chosen)
            credits[name] = max(-CREDIT_LIMIT, min(CREDIT_LIMIT, credit))

    def forget(self, name: str) -> None:
        """A candidate left for good. Safe if it is unknown."""
        for credits in self._credits.values():
            credits.pop(name, None)

    def check_integrity(self) -> None:
        """Raises AssertionError if a credit is out of its bounds."""
        for kind, credits in self._credits.items():
            for name, credit in credits.items():
                assert -CREDIT_LIMIT <= credit <= CREDIT_LIMIT, (
                    f"{name} has credit {credit} for requests of kind {kind}"
                )
