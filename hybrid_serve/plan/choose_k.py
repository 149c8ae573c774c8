"""Choosing K: what one more drafted token brings in accepted tokens, and costs in requests that fit.

Acceptance is given per position, in either of two ways:

- *per position* (vLLM's log, "Per-position acceptance rate"): entry i is the share of all drafts whose token i + 1 was
  accepted. A token counts only if all before it were accepted too, so the entries never rise.
- *conditional*: entry i is the share among those drafts whose first i tokens were accepted. Their running product is
  the per-position rate.

The rates are taken to be the same at every K. A DFlash drafter drafts all K tokens in one forward, in which they see
each other, so rates measured at one K are an approximation at another.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from operator import mul

from hybrid_serve.plan.decide import decide
from hybrid_serve.plan.inputs import PlanInputs
from hybrid_serve.plan.kv_plan import Policy
from hybrid_serve.plan.verdict import Impossible
from hybrid_serve.plan.workload import mean_concurrency, mean_floor_bytes, mean_request_bytes, state_share

OBJECTIVE = (
    "tokens per step x concurrency: the tokens that one engine step yields once the KV cache is full. It takes every "
    "step to be as long as any other, so with few requests, or where a longer draft slows the step down, a smaller K "
    "may serve better"
)


@dataclass(frozen=True, kw_only=True)
class KRow:
    """One K.

    Attributes:
        tokens_per_step: mean accepted length: the accepted drafted tokens and the one that the target adds.
        request_bytes: of a mean request of the workload; None, like the next two, if no engine starts.
        concurrency: mean requests that fit at once.
        yield_per_step: tokens_per_step * concurrency, the objective.
        floor_bytes: of a mean request, without padding; `state_share` of it is mamba state.
    """

    k: int
    tokens_per_step: float
    request_bytes: int | None
    concurrency: float | None
    yield_per_step: float | None
    floor_bytes: int
    state_share: float


def from_conditional(acceptance: Sequence[float]) -> tuple[float, ...]:
    """Per-position rates from conditional ones.

    Raises:
        ValueError: a rate outside 0 to 1.
    """
    for position, rate in enumerate(acceptance, start=1):
        _check_rate(rate, position)
    return tuple(accumulate(acceptance, mul))


def check_acceptance(acceptance: Sequence[float]) -> tuple[float, ...]:
    """Per-position rates as given.

    Raises:
        ValueError: none, one outside 0 to 1, or one above the one before it.
    """
    if not acceptance:
        raise ValueError("no acceptance rates: give one for each drafted position, e.g. 0.8,0.65,0.5")
    for position, rate in enumerate(acceptance, start=1):
        _check_rate(rate, position)
        if position > 1 and rate > acceptance[position - 2]:
            raise ValueError(
                f"the acceptance rate rises from {acceptance[position - 2]} at position {position - 1} to {rate}; "
                "per-position rates count a token only if all before it were accepted, conditional ones (given that "
                "they were) may rise"
            )
    return tuple(acceptance)


def _check_rate(rate: float, position: int) -> None:
    if not 0 <= rate <= 1:
        raise ValueError(f"the acceptance rate at position {position} is {rate}, expected 0 to 1")


def tokens_per_step(acceptance: Sequence[float], k: int) -> float:
    """Mean accepted length with K drafted tokens: 1 + the sum of the first K per-position rates."""
    return 1 + sum(acceptance[:k])


def choose_k(
    inputs: PlanInputs, *, acceptance: Sequence[float], block_size: int, policy: Policy = "best"
) -> tuple[KRow, ...]:
    """One row for each K that the drafter can draft (block_size - 1 at most) and a rate is given for.

    Raises:
        ValueError: the rates are none (`check_acceptance`).
    """
    rates = check_acceptance(acceptance)
    return tuple(_row(inputs, rates, k, policy) for k in range(1, min(block_size - 1, len(rates)) + 1))


def best_k(rows: Sequence[KRow]) -> KRow | None:
    """The row with the highest yield, the smaller K if two are equal; None if no engine starts at any K."""
    able = [row for row in rows if row.yield_per_step is not None]
    return max(able, key=lambda row: (row.yield_per_step or 0.0, -row.k), default=None)


def _row(inputs: PlanInputs, rates: Sequence[float], k: int, policy: Policy) -> KRow:
    at_k = replace(inputs, settings=replace(inputs.settings, num_speculative_tokens=k))
    verdict = decide(at_k, policy).chosen
    plan = None if isinstance(verdict, Impossible) else verdict.plan
    tokens = tokens_per_step(rates, k)
    concurrency = None if plan is None else mean_concurrency(plan, at_k)
    return KRow(
        k=k,
        tokens_per_step=tokens,
        request_bytes=None if plan is None else mean_request_bytes(plan, at_k),
        concurrency=concurrency,
        yield_per_step=None if concurrency is None else tokens * concurrency,
        floor_bytes=mean_floor_bytes(at_k),
        state_share=state_share(at_k),
    )
