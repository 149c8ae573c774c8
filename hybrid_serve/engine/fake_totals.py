"""What a fake engine counts of its requests."""

from typing import Any


class FakeTotals:
    """Running totals since the engine's start, named as in `EngineStats`.

    `acceptance[i]` of all drafts have at least i + 1 of their tokens accepted.
    """

    def __init__(self, acceptance: tuple[float, ...] = (), num_speculative_tokens: int = 0) -> None:
        self._num_speculative_tokens = num_speculative_tokens
        self._acceptance = (acceptance + (0.0,) * num_speculative_tokens)[:num_speculative_tokens] if acceptance else ()
        self._drafts = 0.0
        self._counts = dict.fromkeys(
            (
                "prompt_tokens",
                "generation_tokens",
                "finished_requests",
                "finished_prompt_tokens",
                "finished_generation_tokens",
                "prefix_queries",
                "prefix_hits",
                "ttft_count",
                "tpot_count",
            ),
            0,
        )
        self._ttft_sum_s = self._tpot_sum_s = 0.0

    def prefilled(self, prompt_tokens: int) -> None:
        self._counts["prompt_tokens"] += prompt_tokens

    def looked_up(self, tokens: int, found: int) -> None:
        self._counts["prefix_queries"] += tokens
        self._counts["prefix_hits"] += found

    def generated(self, tokens: int) -> None:
        self._counts["generation_tokens"] += tokens
        if self._acceptance:
            self._drafts += tokens / (1 + sum(self._acceptance))

    def first_token(self, seconds: float) -> None:
        """It came so long after its request."""
        self._counts["ttft_count"] += 1
        self._ttft_sum_s += seconds

    def finished(self, prompt_tokens: int, output_tokens: int, seconds_after_first: float) -> None:
        """A request came to its end, so long after its first token."""
        self._counts["finished_requests"] += 1
        self._counts["finished_prompt_tokens"] += prompt_tokens
        self._counts["finished_generation_tokens"] += output_tokens
        if output_tokens > 1:
            self._counts["tpot_count"] += 1
            self._tpot_sum_s += seconds_after_first / (output_tokens - 1)

    def to_stats(self) -> dict[str, Any]:
        """Fields of `EngineStats`."""
        per_position = tuple(int(self._drafts * share) for share in self._acceptance)
        return {
            "drafts": int(self._drafts),
            "draft_tokens": int(self._drafts) * self._num_speculative_tokens,
            "accepted_tokens": sum(per_position),
            "accepted_per_position": per_position,
            "ttft_sum_s": self._ttft_sum_s,
            "tpot_sum_s": self._tpot_sum_s,
            **self._counts,
        }
