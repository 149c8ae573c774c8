"""Whether a generation is healthy beside the one before it. Pure: figures in, verdicts out.

All of a pool's replicas count together. Two sides are compared over the same span, since the bake began, where the pool
still has replicas of the old generation; otherwise the new side is held against what its replicas did before they
switched. Latency follows the load, so outside the bake it is judged only over the same span.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

from hybrid_serve.rollout.wire import Figures, Gates

Gate = Literal[
    "replica start",
    "predicted = actual",
    "engine deaths",
    "error rate",
    "TTFT",
    "time per output token",
    "acceptance",
]
State = Literal["passed", "failed", "waiting", "not judged"]


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """One gate of one pool.

    Attributes:
        old, new, limit: None where the gate has no figure, or none yet. Seconds, tokens per draft, or a share.
        text: pool, gate, figures and limit in a sentence.
    """

    pool: str
    gate: Gate
    state: State
    text: str
    old: float | None = None
    new: float | None = None
    limit: float | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What is known of one pool's two sides.

    Attributes:
        old_k, new_k: num_speculative_tokens of both.
        new: totals of the replicas on the new generation since their engines started.
        new_span: the same since the bake began.
        old_span: of the replicas on the old generation since the bake began.
        before: totals of the engines that the switched replicas had.
        not_started, differences, deaths: sentences, each with a replica.
        early: latency is not judged yet, since an engine's first requests are slow.
        baking: the time in which latency may be held against `before`.
        over: what can't be judged by now won't be.
    """

    pool: str
    old_k: int
    new_k: int
    new: Figures
    new_span: Figures
    old_span: Figures
    before: Figures
    not_started: tuple[str, ...] = ()
    differences: tuple[str, ...] = ()
    deaths: tuple[str, ...] = ()
    early: bool = False
    baking: bool = True
    over: bool = False


def added(figures: Iterable[Figures]) -> Figures:
    """Totals of several engines as one."""
    requests = errors = ttft_count = tpot_count = drafts = 0
    ttft_sum_s = tpot_sum_s = 0.0
    accepted: list[int] = []
    for each in figures:
        requests += each.requests
        errors += each.errors
        ttft_count += each.ttft_count
        ttft_sum_s += each.ttft_sum_s
        tpot_count += each.tpot_count
        tpot_sum_s += each.tpot_sum_s
        drafts += each.drafts
        accepted += [0] * (len(each.accepted_per_position) - len(accepted))
        for position, count in enumerate(each.accepted_per_position):
            accepted[position] += count
    return Figures(
        requests=requests,
        errors=errors,
        ttft_count=ttft_count,
        ttft_sum_s=ttft_sum_s,
        tpot_count=tpot_count,
        tpot_sum_s=tpot_sum_s,
        drafts=drafts,
        accepted_per_position=tuple(accepted),
    )


def since(now: Figures, then: Figures | None) -> Figures:
    """What was added. Totals that fell are of an engine that started since: they count whole."""
    if then is None:
        return now
    if (
        now.requests < then.requests
        or now.errors < then.errors
        or now.ttft_count < then.ttft_count
        or now.tpot_count < then.tpot_count
        or now.drafts < then.drafts
    ):
        return now
    before = then.accepted_per_position + (0,) * len(now.accepted_per_position)
    return Figures(
        requests=now.requests - then.requests,
        errors=now.errors - then.errors,
        ttft_count=now.ttft_count - then.ttft_count,
        ttft_sum_s=now.ttft_sum_s - then.ttft_sum_s,
        tpot_count=now.tpot_count - then.tpot_count,
        tpot_sum_s=now.tpot_sum_s - then.tpot_sum_s,
        drafts=now.drafts - then.drafts,
        accepted_per_position=tuple(
            count - before[position] for position, count in enumerate(now.accepted_per_position)
        ),
    )


def judge(evidence: Evidence, gates: Gates) -> tuple[Verdict, ...]:
    """Every gate of one pool."""
    return (
        *judge_start(evidence),
        _sentences(evidence.pool, "engine deaths", evidence.deaths, "no engine died"),
        _error_rate(evidence, gates),
        _latency(evidence, gates, "TTFT"),
        _latency(evidence, gates, "time per output token"),
        _acceptance(evidence, gates),
    )


def judge_start(evidence: Evidence) -> tuple[Verdict, ...]:
    """The two gates that a rollback has too."""
    return (
        _sentences(evidence.pool, "replica start", evidence.not_started, "every replica started"),
        _sentences(evidence.pool, "predicted = actual", evidence.differences, "every engine runs its plan"),
    )


def _sentences(pool: str, gate: Gate, sentences: tuple[str, ...], otherwise: str) -> Verdict:
    if not sentences:
        return Verdict(pool=pool, gate=gate, state="passed", text=f"pool {pool}: {gate}: {otherwise}")
    more = f" (and {len(sentences) - 1} more)" if len(sentences) > 1 else ""
    return Verdict(pool=pool, gate=gate, state="failed", text=f"pool {pool}: {gate}: {sentences[0]}{more}")


def _error_rate(evidence: Evidence, gates: Gates) -> Verdict:
    new, old = evidence.new, evidence.old_span
    if _answers(old) < gates.min_requests:
        old = evidence.before
    if _answers(new) < gates.min_requests:
        return _too_few(evidence, "error rate", _answers(new), gates, "the new generation")
    was, now = _rate(old), _rate(new)
    return _compared(
        evidence.pool,
        "error rate",
        failed=now > was + gates.error_rate,
        old=was,
        new=now,
        limit=was + gates.error_rate,
        figures=f"{now:.2%} ({new.errors} of {_answers(new)}) on the new generation, {was:.2%} on the old one",
        bound=f"at most {was + gates.error_rate:.2%}",
    )


def _latency(evidence: Evidence, gates: Gates, gate: Literal["TTFT", "time per output token"]) -> Verdict:
    first = gate == "TTFT"
    ratio = gates.ttft_ratio if first else gates.tpot_ratio
    (new_count, new), (old_count, old), (before_count, before) = (
        _mean(figures, first) for figures in (evidence.new_span, evidence.old_span, evidence.before)
    )
    if new_count < gates.min_requests:
        return _too_few(evidence, gate, new_count, gates, "the new generation")
    if old_count < gates.min_requests:
        if not evidence.baking:
            why = "no replica of the old generation served enough over the same span"
            return Verdict(
                pool=evidence.pool, gate=gate, state="not judged", text=f"pool {evidence.pool}: {gate}: {why}"
            )
        if before_count < gates.min_requests:
            return _too_few(evidence, gate, max(old_count, before_count), gates, "the old generation")
        old = before
    if old <= 0:
        return _unlike(evidence.pool, gate, "the old generation has no such figure")
    if evidence.early:
        text = f"pool {evidence.pool}: {gate}: {new:.4f} s, {old:.4f} s before; judged from half of the bake on"
        return Verdict(pool=evidence.pool, gate=gate, state="waiting", text=text, old=old, new=new, limit=old * ratio)
    return _compared(
        evidence.pool,
        gate,
        failed=new > old * ratio,
        old=old,
        new=new,
        limit=old * ratio,
        figures=f"{new:.4f} s on the new generation, {old:.4f} s on the old one ({new / old:.2f} times)",
        bound=f"at most {ratio:g} times, {old * ratio:.4f} s",
    )


def _acceptance(evidence: Evidence, gates: Gates) -> Verdict:
    positions = min(evidence.old_k, evidence.new_k)
    if not positions:
        return _unlike(evidence.pool, "acceptance", "one of the generations has no drafter")
    new, old = evidence.new, evidence.old_span
    if _answers(old) < gates.min_requests or not old.drafts:
        old = evidence.before
    if _answers(new) < gates.min_requests or not new.drafts:
        return _too_few(evidence, "acceptance", _answers(new) if new.drafts else 0, gates, "the new generation")
    if _answers(old) < gates.min_requests or not old.drafts:
        return _too_few(evidence, "acceptance", _answers(old) if old.drafts else 0, gates, "the old generation")
    was, now = _accepted(old, positions), _accepted(new, positions)
    if was <= 0:
        return _unlike(evidence.pool, "acceptance", "nothing was accepted on the old generation")
    return _compared(
        evidence.pool,
        "acceptance",
        failed=now < was * gates.acceptance_ratio,
        old=was,
        new=now,
        limit=was * gates.acceptance_ratio,
        figures=f"{now:.2f} tokens per draft on the new generation, {was:.2f} on the old one, over the first "
        f"{positions} positions ({now / was:.2f} times)",
        bound=f"at least {gates.acceptance_ratio:g} times, {was * gates.acceptance_ratio:.2f}",
    )


def _answers(figures: Figures) -> int:
    return figures.requests + figures.errors


def _rate(figures: Figures) -> float:
    return figures.errors / _answers(figures) if _answers(figures) else 0.0


def _mean(figures: Figures, first: bool) -> tuple[int, float]:
    count = figures.ttft_count if first else figures.tpot_count
    total = figures.ttft_sum_s if first else figures.tpot_sum_s
    return count, total / count if count else 0.0


def _accepted(figures: Figures, positions: int) -> float:
    return sum(figures.accepted_per_position[:positions]) / figures.drafts


def _compared(
    pool: str, gate: Gate, *, failed: bool, old: float, new: float, limit: float, figures: str, bound: str
) -> Verdict:
    return Verdict(
        pool=pool,
        gate=gate,
        state="failed" if failed else "passed",
        text=f"pool {pool}: {gate}: {figures}; the limit is {bound}",
        old=old,
        new=new,
        limit=limit,
    )


def _too_few(evidence: Evidence, gate: Gate, count: int, gates: Gates, side: str) -> Verdict:
    text = f"pool {evidence.pool}: {gate}: {side} has {count} requests to judge by, {gates.min_requests} are needed"
    return Verdict(
        pool=evidence.pool,
        gate=gate,
        state="not judged" if evidence.over else "waiting",
        text=text,
    )


def _unlike(pool: str, gate: Gate, why: str) -> Verdict:
    return Verdict(pool=pool, gate=gate, state="not judged", text=f"pool {pool}: {gate}: {why}")
