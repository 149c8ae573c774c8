"""Chats whose right answers are known: greedy, and heard from an engine before, one at a time.

Answers that end by themselves are compared whole. A part of the chats goes on past its end, so that streams last for
seconds; there the model is no longer sure of anything, near-ties round differently from batch to batch, and only what
comes before the end is compared.
"""

import itertools
import random
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from benchmarks.load import Outcome, Request
from hybrid_serve.demo.corpus import held_out_prompts

LONGEST_ANSWER = 250
"""Tokens that an answer may have."""
LONG = (LONGEST_ANSWER + 10, 400)
"""Tokens of a chat that goes on past its end."""


def questions(count: int, seed: int) -> list[Request]:
    """Every chat once, to its natural end: what the right answers are heard with."""
    return [
        Request(messages=p.messages, max_tokens=LONGEST_ANSWER, ignore_eos=False) for p in held_out_prompts(count, seed)
    ]


def endless(asked: Sequence[Request], seed: int, *, streamed: float = 0.7, long: float = 0.3) -> Iterator[Request]:
    """These chats in random order, without end: a share of them streamed, a share of them long."""
    rng = random.Random(seed)
    while True:
        request = rng.choice(asked)
        is_long = rng.random() < long
        yield Request(
            messages=request.messages,
            max_tokens=rng.randint(*LONG) if is_long else request.max_tokens,
            stream=rng.random() < streamed,
            ignore_eos=is_long,
        )


class Answers:
    """What was heard, by chat."""

    def __init__(self, outcomes: Iterable[Outcome]) -> None:
        """Raises ValueError if one of them is not complete."""
        self._by_chat: dict[str, str] = {}
        for outcome in outcomes:
            if outcome.end != "done" or not outcome.text:
                raise ValueError(f"no right answer to {outcome.request.messages}: {outcome.end}")
            self._by_chat[_chat(outcome.request)] = outcome.text

    def __len__(self) -> int:
        return len(self._by_chat)

    def right(self, outcome: Outcome) -> bool:
        """Whether a finished request was answered as before, but for blanks at its end."""
        expected, text = self._by_chat[_chat(outcome.request)].rstrip(), outcome.text.rstrip()
        return text.startswith(expected) if outcome.request.ignore_eos else text == expected


def _chat(request: Request) -> str:
    return request.messages[-1]["content"]


def figures(
    outcomes: Iterable[Outcome], answers: Answers, since: float = 0.0, until: float = float("inf")
) -> dict[str, Any]:
    """Of the requests that were sent between two moments, in seconds after the load began.

    `failed` are those that a client would call so: anything but a complete answer. TTFT is of streams only: a plain
    request has its first token with its last.
    """
    sent = [outcome for outcome in outcomes if since <= outcome.sent_s < until]
    done = [outcome for outcome in sent if outcome.end == "done"]
    firsts = sorted(o.first_s for o in done if o.request.stream and o.first_s is not None)
    return {
        "requests": len(sent),
        "streams": sum(outcome.request.stream for outcome in sent),
        "ends": dict(Counter(outcome.end for outcome in sent)),
        "failed": len(sent) - len(done),
        "wrong_answers": sum(not answers.right(outcome) for outcome in done),
        "ttft_p50_s": round(statistics.median(firsts), 3) if firsts else None,
        "ttft_p99_s": round(firsts[min(len(firsts) - 1, int(0.99 * len(firsts)))], 3) if firsts else None,
        "ttft_worst_s": round(firsts[-1], 3) if firsts else None,
        "slowest_s": round(max((outcome.total_s for outcome in sent), default=0.0), 2),
    }


def longest_gap(outcomes: Iterable[Outcome], since: float, until: float) -> float:
    """Seconds in which no request was answered completely that was sent then: how long a service was away."""
    good = sorted(o.sent_s for o in outcomes if o.end == "done" and since <= o.sent_s < until)
    return round(max(b - a for a, b in itertools.pairwise([since, *good, until])), 1)
