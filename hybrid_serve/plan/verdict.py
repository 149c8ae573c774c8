"""What planning answers. Results are values; exceptions live at the edges."""

from dataclasses import dataclass

from hybrid_serve.plan.kv_plan import KVPlan


@dataclass(frozen=True, kw_only=True)
class Fits:
    """vLLM runs this plan unaided."""

    plan: KVPlan


@dataclass(frozen=True, kw_only=True)
class NeedsPatch:
    """vLLM runs this plan only with the hybrid_serve plugin; `reason` says what stock would do instead."""

    plan: KVPlan
    reason: str
    remedy: str


@dataclass(frozen=True, kw_only=True)
class Impossible:
    """No engine starts on these inputs.

    Attributes:
        error: the exception that vLLM would raise, e.g. `ValueError`; `Rejected` where this vLLM has no such option;
            empty if ours.
        reason: what, with the numbers.
        remedy: what to change.
        max_model_len: largest that fits, where memory is the reason; 0 if none does.
        computed: the layout that vLLM had worked out before it refused; None if it did not get that far.
    """

    reason: str
    remedy: str
    error: str = ""
    max_model_len: int | None = None
    computed: KVPlan | None = None


Verdict = Fits | NeedsPatch | Impossible
