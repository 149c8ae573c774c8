"""What is known of a pool before one of its replicas runs: what the controller needs to count in KV tokens."""

from dataclasses import asdict, dataclass, replace
from math import ceil
from typing import Any

from hybrid_serve.plan.group_need import GroupNeed, group_needs
from hybrid_serve.plan.inputs import PlanInputs
from hybrid_serve.plan.kv_plan import KVPlan


@dataclass(frozen=True, kw_only=True)
class PoolFacts:
    """One pool as it was planned, in plain values: it travels to Ray Serve's controller as JSON.

    Attributes:
        cost: of one replica per hour, relative to other pools.
        kv_tokens, num_blocks: of one replica; what replicas report later counts over it.
        max_requests: requests that one replica runs at once.
        typical_tokens: length of a request of which nothing is known, prompt and output.
        groups: needs of the plan's KV groups.
    """

    name: str
    model: str
    cost: float
    kv_tokens: float
    num_blocks: float
    max_requests: float
    typical_tokens: float
    groups: tuple[GroupNeed, ...]

    @classmethod
    def planned(cls, plan: KVPlan, inputs: PlanInputs, **pool: Any) -> "PoolFacts":
        """From the plan; `pool` are the fields that it does not have: name, model, cost, ..."""
        needs = group_needs(plan, inputs)
        return cls(kv_tokens=plan.kv_tokens, num_blocks=plan.num_blocks, groups=needs, **pool)

    @classmethod
    def guessed(cls, concurrency: int, **pool: Any) -> "PoolFacts":
        """Of a pool that no plan is known for: `concurrency` typical requests, a block for each token."""
        need = GroupNeed(kind="full", block_size=1, window=None, fixed_blocks=0, kept_tokens=None)
        tokens = concurrency * pool["typical_tokens"]
        return cls(kv_tokens=tokens, num_blocks=tokens, groups=(need,), **pool)

    def kv_tokens_of(self, tokens: float) -> float:
        """What one request of that many tokens takes: its share of a replica's blocks, of the replica's KV tokens.

        More than `tokens` for a short request, since mamba states do not shrink with it.
        """
        blocks = sum(group.blocks(ceil(tokens)) for group in self.groups)
        return blocks * self.kv_tokens / self.num_blocks

    def with_kv_tokens(self, kv_tokens: float) -> "PoolFacts":
        """The same layout over another amount of memory."""
        return replace(self, kv_tokens=kv_tokens, num_blocks=self.num_blocks * kv_tokens / self.kv_tokens)

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"groups": [group.to_json() for group in self.groups]}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "PoolFacts":
        return cls(**{**value, "groups": tuple(GroupNeed.from_json(group) for group in value["groups"])})
