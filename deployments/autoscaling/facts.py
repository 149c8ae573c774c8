"""What is known of a pool before one of its replicas runs: what the controller needs to count in KV tokens."""

from dataclasses import asdict, dataclass, replace
from math import ceil
from typing import Any

from hybrid_serve.plan.capacity import group_blocks, in_flight_tokens
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
        fixed_blocks: blocks of a request that do not depend on its length (mamba states).
        groups: of each other KV group: block size, most tokens that are kept (0: all), further blocks.
    """

    name: str
    model: str
    cost: float
    kv_tokens: float
    num_blocks: float
    max_requests: float
    typical_tokens: float
    fixed_blocks: int
    groups: tuple[tuple[int, int, int], ...]

    @classmethod
    def planned(
        cls,
        plan: KVPlan,
        inputs: PlanInputs,
        *,
        name: str,
        model: str,
        cost: float,
        max_requests: float,
        typical_tokens: float,
    ) -> "PoolFacts":
        fixed = 0
        groups = []
        for group in plan.groups:
            if group.kind == "mamba":
                fixed += group_blocks(group.kind, block_size=1, window=None, context=1, inputs=inputs)
            elif group.kind == "sliding":
                kept = (group.window or 1) - 1 + in_flight_tokens(inputs)
                groups.append((group.block_size, kept, 1))
            else:
                groups.append((group.block_size, 0, 0))
        return cls(
            name=name,
            model=model,
            cost=cost,
            kv_tokens=plan.kv_tokens,
            num_blocks=plan.num_blocks,
            max_requests=max_requests,
            typical_tokens=typical_tokens,
            fixed_blocks=fixed,
            groups=tuple(groups),
        )

    def blocks_of(self, tokens: float) -> int:
        """Blocks that one request of that many tokens holds, as `hybrid_serve.plan.capacity.request_blocks`."""
        return self.fixed_blocks + sum(
            ceil((min(tokens, most) if most else tokens) / block_size) + further
            for block_size, most, further in self.groups
        )

    def kv_tokens_of(self, tokens: float) -> float:
        """The same in KV tokens: its share of a replica's blocks, of the replica's KV tokens.

        More than `tokens` for a short request, since mamba states do not shrink with it.
        """
        return self.blocks_of(tokens) * self.kv_tokens / self.num_blocks

    def with_kv_tokens(self, kv_tokens: float) -> "PoolFacts":
        """The same layout over another amount of memory."""
        return replace(self, kv_tokens=kv_tokens, num_blocks=self.num_blocks * kv_tokens / self.kv_tokens)

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"groups": [list(group) for group in self.groups]}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "PoolFacts":
        return cls(**{**value, "groups": tuple((size, most, further) for size, most, further in value["groups"])})
