"""The planner's one decision: which plan runs, and what stock vLLM would have done."""

from dataclasses import dataclass
from functools import lru_cache

from hybrid_serve.plan.best import best
from hybrid_serve.plan.inputs import PlanInputs
from hybrid_serve.plan.kv_plan import KVPlan, Policy
from hybrid_serve.plan.stock import stock
from hybrid_serve.plan.verdict import Impossible, Verdict


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What was chosen under a policy, beside what stock vLLM does unaided.

    Attributes:
        chosen: the verdict under the asked policy.
        stock: stock vLLM's; equal to `chosen` under policy `stock`.
    """

    policy: Policy
    chosen: Verdict
    stock: Verdict

    @property
    def plan(self) -> KVPlan | None:
        """The chosen plan; None if nothing starts."""
        return None if isinstance(self.chosen, Impossible) else self.chosen.plan

    @property
    def stock_kv_tokens(self) -> int | None:
        """Stock vLLM's "GPU KV cache size"; None if stock does not start."""
        return None if isinstance(self.stock, Impossible) else self.stock.plan.kv_tokens


KEPT_DECISIONS = 4096


@lru_cache(maxsize=KEPT_DECISIONS)
def decide(inputs: PlanInputs, policy: Policy = "best") -> Decision:
    """Plan one replica. Pure: equal inputs give equal decisions, on whichever machine."""
    unaided = stock(inputs)
    return Decision(policy=policy, chosen=unaided if policy == "stock" else best(inputs), stock=unaided)
