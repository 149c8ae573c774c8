"""What a plan means for a workload: bytes of a mean request, how many fit, and where the bytes go."""

from typing import NamedTuple

from hybrid_serve.plan.buckets import MambaBucket, asked_buckets_of
from hybrid_serve.plan.capacity import floor_bytes, group_blocks, request_blocks, states_of_a_draft
from hybrid_serve.plan.inputs import PlanInputs
from hybrid_serve.plan.kv_plan import GroupKind, KVPlan, Owner
from hybrid_serve.plan.search import contexts_of

COMMON_CONTEXTS = (2048, 8192, 32768, 131072)


class TypeBytes(NamedTuple):
    """One layer type of the target or of the drafter under a plan, for a mean request.

    Attributes:
        blocks: block ids that the request holds in all groups of this type.
        held: their bytes.
        padding: those of `held` that no token and no state can use.
    """

    owner: Owner
    kind: GroupKind
    layers: int
    groups: int
    blocks: float
    held: int
    padding: int


def mean_blocks(plan: KVPlan, inputs: PlanInputs) -> float:
    """Blocks that a mean request of the workload holds."""
    return sum(weight * request_blocks(plan, inputs, tokens) for tokens, weight in contexts_of(inputs))


def mean_request_bytes(plan: KVPlan, inputs: PlanInputs) -> int:
    """Bytes that a mean request of the workload holds under a plan."""
    return round(mean_blocks(plan, inputs) * plan.block_bytes)


def mean_floor_bytes(inputs: PlanInputs) -> int:
    """Bytes that a mean request of the workload needs with no padding and no rounding to blocks."""
    return round(sum(weight * floor_bytes(inputs, tokens) for tokens, weight in contexts_of(inputs)))


def mean_concurrency(plan: KVPlan, inputs: PlanInputs) -> float:
    """Requests that fit at once, if they come in the workload's proportions."""
    return plan.num_blocks / mean_blocks(plan, inputs)


def concurrency_at(plan: KVPlan, inputs: PlanInputs, context: int) -> float:
    """Requests of `context` tokens that fit at once."""
    return plan.num_blocks / request_blocks(plan, inputs, context)


def contexts_to_show(inputs: PlanInputs) -> tuple[int, ...]:
    """Contexts at which concurrency is worth a look: the workload's, max_model_len, and round figures below it."""
    longest = inputs.settings.max_model_len
    asked = {tokens for tokens, _ in contexts_of(inputs)}
    return tuple(sorted(asked | {longest} | {tokens for tokens in COMMON_CONTEXTS if tokens < longest}))


def by_layer_type(plan: KVPlan, inputs: PlanInputs) -> tuple[TypeBytes, ...]:
    """Where a mean request's bytes go, in the order of the plan's groups."""
    found: dict[tuple[Owner, GroupKind], TypeBytes] = {}
    for group in plan.groups:
        blocks = sum(
            weight
            * group_blocks(group.kind, block_size=group.block_size, window=group.window, context=tokens, inputs=inputs)
            for tokens, weight in contexts_of(inputs)
        )
        key = (group.owner, group.kind)
        so_far = found.get(key, TypeBytes(*key, 0, 0, 0.0, 0, 0))
        found[key] = TypeBytes(
            *key,
            layers=so_far.layers + group.layers,
            groups=so_far.groups + 1,
            blocks=so_far.blocks + blocks,
            held=so_far.held + round(blocks * plan.block_bytes),
            padding=so_far.padding + round(blocks * group.padding_bytes(plan.block_bytes)),
        )
    return tuple(found.values())


def state_bytes_of_a_request(inputs: PlanInputs) -> int:
    """Bytes of mamba state in one request, without padding: layers * states * state bytes.

    Qwen3.5-35B-A3B at K = 8: 30 * 9 * 2,277,376 = 614,891,520.
    """
    states = states_of_a_draft(inputs) + (1 if inputs.settings.prefix_caching else 0)
    return sum(b.layers * b.state_bytes * states for b in asked_buckets_of(inputs) if isinstance(b, MambaBucket))


def state_share(inputs: PlanInputs) -> float:
    """The share of a mean request that is mamba state, without padding."""
    return state_bytes_of_a_request(inputs) / mean_floor_bytes(inputs)


def percent_over(held: int, content: int) -> float:
    """How much larger `held` is than `content`, in percent."""
    return 100 * (held / content - 1)
