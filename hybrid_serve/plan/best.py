"""`best()`: the plan that needs fewest bytes for the stated workload, weighed against its group count."""

from collections.abc import Iterable
from dataclasses import replace

from hybrid_serve.facts.layers import PER_TOKEN_HEAD
from hybrid_serve.plan.buckets import drafter_kv_dtype, resolve_dtype
from hybrid_serve.plan.build import fits, largest_context
from hybrid_serve.plan.capacity import kernel_block, request_bytes
from hybrid_serve.plan.inputs import PlanInputs
from hybrid_serve.plan.kv_plan import KVPlan
from hybrid_serve.plan.refusals import refusal, too_little_memory
from hybrid_serve.plan.search import mean_request_bytes, packed_plan, score, uniform_plan
from hybrid_serve.plan.stock import stock
from hybrid_serve.plan.verdict import Fits, Impossible, NeedsPatch, Verdict

PACKED_LAYOUT = "BLNHC"
GIVEN_UP_FOR_SPEED = 0.05
"""What `prefer: speed` may take of memory beyond the roomiest plan, for a mean and for a longest request: a share."""
ASK_FOR_A_PLAN = """--additional-config '{"hybrid_serve": {"plan": "auto"}}'"""


def best(inputs: PlanInputs) -> Verdict:
    """The best plan of the families that the device and the layout allow; stock's own where nothing beats it.

    Uniform pages everywhere; packed blocks on CUDA with FlashAttention and `VLLM_KV_CACHE_LAYOUT=BLNHC`
    (the CPU backend has no block-outermost layout). Never worse than stock by `score`. With `prefer: speed` fewer
    groups count for more, and whole tiles count (`paged_tile`); a plan that holds less than GIVEN_UP_FOR_SPEED allows,
    or than stock's, is not taken for that.
    """
    if (refused := refusal(inputs)) is not None:
        return refused
    unaided = stock(inputs)
    for_capacity = replace(inputs, workload=replace(inputs.workload, prefer="capacity"))
    roomy = _families(for_capacity)
    roomiest = _roomiest(for_capacity, roomy, unaided)
    if inputs.workload.prefer == "capacity" or isinstance(roomiest, Impossible):
        return roomiest
    return _faster(inputs, roomiest, _families(inputs) + roomy, unaided)


def _roomiest(inputs: PlanInputs, families: list[KVPlan], unaided: Verdict) -> Verdict:
    found = [plan for plan in families if fits(plan, inputs, inputs.settings.max_model_len)]
    if isinstance(unaided, Fits):
        better = [plan for plan in found if score(plan, inputs) < score(unaided.plan, inputs)]
        if not better:
            return unaided
        found = better
    if not found:
        return _impossible(inputs, families, unaided)
    chosen = min(found, key=lambda plan: score(plan, inputs))
    return NeedsPatch(plan=chosen, reason=_reason(chosen, unaided), remedy=_remedy(chosen, inputs))


def _faster(
    inputs: PlanInputs, roomiest: Fits | NeedsPatch, plans: Iterable[KVPlan], unaided: Verdict
) -> Fits | NeedsPatch:
    """The fastest of `plans` that holds nearly what the roomiest does; the roomiest if none is faster."""

    def holds_enough(plan: KVPlan) -> bool:
        mean, longest = mean_request_bytes(plan, inputs), _longest_request_bytes(plan, inputs)
        return (
            mean <= (1 + GIVEN_UP_FOR_SPEED) * mean_request_bytes(roomiest.plan, inputs)
            and longest <= (1 + GIVEN_UP_FOR_SPEED) * _longest_request_bytes(roomiest.plan, inputs)
            and (not isinstance(unaided, Fits) or mean <= mean_request_bytes(unaided.plan, inputs))
            and fits(plan, inputs, inputs.settings.max_model_len)
        )

    chosen = min([roomiest.plan, *filter(holds_enough, plans)], key=lambda plan: score(plan, inputs))
    if chosen == roomiest.plan:
        return roomiest
    return NeedsPatch(plan=chosen, reason=_reason(chosen, unaided), remedy=_remedy(chosen, inputs))


def _longest_request_bytes(plan: KVPlan, inputs: PlanInputs) -> int:
    return request_bytes(plan, inputs, inputs.settings.max_model_len)


def _families(inputs: PlanInputs) -> list[KVPlan]:
    """The best plan of each family that is allowed here.

    Packed blocks need the release's block-outermost layouts, and whole kernel pages where FlashAttention 4 splits
    blocks. There is none where layers would overwrite each other's blocks.
    """
    layout = inputs.settings.kv_cache_layout
    engine = inputs.capabilities
    if not engine.reconciles_attention_layouts and not inputs.target.mamba and _mixes_backends(inputs):
        return []
    whole_pages = engine.packs_whole_kernel_pages or kernel_block(inputs) != engine.fa4_kernel_block
    packable = inputs.device == "cuda" and engine.block_outermost and whole_pages and layout in (None, PACKED_LAYOUT)
    uniform = None if layout is not None and layout.startswith("B") else uniform_plan(inputs, layout=layout)
    packed = packed_plan(inputs, layout=PACKED_LAYOUT) if packable else None
    return [plan for plan in (uniform, packed) if plan is not None]


def _mixes_backends(inputs: PlanInputs) -> bool:
    """FlashAttention for one side and Triton, which has the per-token-head dtypes, for the other."""
    target = resolve_dtype(inputs.settings.kv_dtype, inputs.target_dtype) in PER_TOKEN_HEAD
    return inputs.drafter is not None and target != (drafter_kv_dtype(inputs) in PER_TOKEN_HEAD)


def _impossible(inputs: PlanInputs, families: list[KVPlan], unaided: Verdict) -> Impossible:
    """Memory is too small: the largest context over the plans of all families."""
    if not families:
        return unaided if isinstance(unaided, Impossible) else too_little_memory(unaided.plan, inputs, 0)
    roomiest = max(families, key=lambda plan: largest_context(plan, inputs))
    return too_little_memory(roomiest, inputs, largest_context(roomiest, inputs))


def _reason(chosen: KVPlan, unaided: Verdict) -> str:
    if isinstance(unaided, Impossible):
        return f"stock vLLM {chosen.vllm} does not start: {unaided.reason}"
    stock_plan = unaided.plan
    gain = chosen.kv_tokens / stock_plan.kv_tokens - 1 if stock_plan.kv_tokens else 0.0
    return (
        f"stock vLLM {chosen.vllm} needs {stock_plan.request_bytes:,} bytes for a request of "
        f"{chosen.max_model_len:,} tokens ({len(stock_plan.groups)} groups, blocks of {stock_plan.block_bytes:,}); "
        f"this plan needs {chosen.request_bytes:,} ({len(chosen.groups)} groups, blocks of {chosen.block_bytes:,}): "
        f"{gain:+.0%} tokens"
    )


def _remedy(chosen: KVPlan, inputs: PlanInputs) -> str:
    if inputs.capabilities.patch is None:
        return f"no patch applies a plan to vLLM {chosen.vllm} yet: use a release that has one, or policy stock"
    layout = f" and VLLM_KV_CACHE_LAYOUT={chosen.kv_cache_layout}" if chosen.pages == "packed" else ""
    return f"run vLLM with the hybrid_serve plugin ({ASK_FOR_A_PLAN}){layout}"
