"""A request's blocks in one KV group when only its length is still open: what a router computes with."""

from dataclasses import asdict, dataclass
from typing import Any

from hybrid_serve.plan.capacity import ceil_div, in_flight_tokens, states_per_request
from hybrid_serve.plan.inputs import PlanInputs
from hybrid_serve.plan.kv_plan import GroupKind, GroupPlan, KVPlan


@dataclass(frozen=True, kw_only=True)
class GroupNeed:
    """`hybrid_serve.plan.capacity.group_blocks` of one group with everything filled in but the context.

        blocks(L) = fixed_blocks + ceil(min(L, kept_tokens) / block_size)      (mamba: fixed_blocks)

    Attributes:
        kind, block_size, window: as in the plan's group.
        fixed_blocks: blocks that do not depend on the length: a mamba group's states, a sliding window's edge.
        kept_tokens: tokens that are kept at most; None if all are.
    """

    kind: GroupKind
    block_size: int
    window: int | None
    fixed_blocks: int
    kept_tokens: int | None

    def blocks(self, context: int) -> int:
        """Blocks of one request of `context` tokens."""
        if self.kind == "mamba":
            return self.fixed_blocks
        kept = context if self.kept_tokens is None else min(context, self.kept_tokens)
        return self.fixed_blocks + ceil_div(kept, self.block_size)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "GroupNeed":
        """Inverse of `to_json`.

        Raises:
            ValueError: a field is missing or unknown; the message names it.
        """
        try:
            return cls(**value)
        except TypeError as error:
            raise ValueError(f"not a group's need: {error}; expected the fields of GroupNeed.to_json()") from error


def group_need(group: GroupPlan, inputs: PlanInputs) -> GroupNeed:
    """The need of one planned group."""
    fixed, kept = 0, None
    if group.kind == "mamba":
        fixed = states_per_request(inputs)
    elif group.kind == "sliding" and group.window is not None:
        fixed, kept = 1, group.window - 1 + in_flight_tokens(inputs)
    elif group.kind == "sliding":
        fixed = 1
    return GroupNeed(
        kind=group.kind, block_size=group.block_size, window=group.window, fixed_blocks=fixed, kept_tokens=kept
    )


def group_needs(plan: KVPlan, inputs: PlanInputs) -> tuple[GroupNeed, ...]:
    """One need a group, in the plan's order; their blocks add up to `request_blocks(plan, inputs, context)`."""
    return tuple(group_need(group, inputs) for group in plan.groups)
