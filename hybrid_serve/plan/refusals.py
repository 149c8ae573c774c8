"""Why no engine starts: reasons with their numbers, and remedies."""

from hybrid_serve.plan.buckets import AttentionBucket, MambaBucket, buckets_of
from hybrid_serve.plan.inputs import PlanInputs
from hybrid_serve.plan.kv_plan import KVPlan
from hybrid_serve.plan.verdict import Impossible
from hybrid_serve.sizes import format_size


def refusal(inputs: PlanInputs) -> Impossible | None:
    """What this vLLM refuses on this device whatever the plan; None if nothing."""
    drafter = [b for b in buckets_of(inputs) if isinstance(b, AttentionBucket) and b.owner == "drafter"]
    kinds = {bucket.kind for bucket in drafter}
    if inputs.device == "cpu" and inputs.capabilities.cpu_drafter_in_one_group and len(kinds) > 1:
        counts = ", ".join(f"{bucket.layers} {bucket.kind}" for bucket in drafter)
        return Impossible(
            reason=f"the drafter mixes {counts} attention layers, which needs the V2 model runner; "
            f"vLLM {inputs.capabilities.version} on a CPU has only the V1 runner",
            remedy="use a drafter whose layers are all full attention, or a GPU",
            error="NotImplementedError",
        )
    has_mamba = any(isinstance(bucket, MambaBucket) for bucket in buckets_of(inputs))
    if (
        inputs.device == "cpu"
        and has_mamba
        and inputs.drafter is not None
        and inputs.settings.prefix_caching
        and not inputs.capabilities.cpu_mamba_align
    ):
        return Impossible(
            reason=f"vLLM {inputs.capabilities.version} on a CPU starts with prefix caching on a hybrid model with a "
            "drafter, and its engine dies on the first request: cache mode `align` copies states in a Triton kernel",
            remedy="turn prefix caching off, or use a GPU",
            error="TypeError",
        )
    return None


def one_group_drafter(inputs: PlanInputs) -> bool:
    """The V1 model runner (the CPU's, and some methods') wants all of a drafter's layers in one group."""
    capabilities = inputs.capabilities
    on_cpu = inputs.device == "cpu" and capabilities.cpu_drafter_in_one_group
    return on_cpu or inputs.method in capabilities.v1_methods


def scattered_drafter(groups: int, inputs: PlanInputs) -> Impossible:
    """Stock grouping splits the drafter's layers, and the V1 model runner refuses."""
    return Impossible(
        reason=f"vLLM {inputs.capabilities.version} splits the drafter's layers into {groups} groups, and its V1 model "
        "runner wants all drafting layers in one",
        remedy="run the hybrid_serve plan (policy best), or a drafter with as many layers as the smallest bucket",
        error="AssertionError",
    )


def too_little_memory(plan: KVPlan, inputs: PlanInputs, largest: int) -> Impossible:
    """Memory holds no request of max_model_len; `largest` is the largest context that fits."""
    needed = plan.request_bytes + plan.block_bytes
    remedy = (
        f"lower max_model_len to {largest:,} or less, or give at least {format_size(needed)} of KV memory"
        if largest
        else f"give at least {format_size(needed)} of KV memory; no context fits in this little"
    )
    return Impossible(
        reason=f"one request of {inputs.settings.max_model_len:,} tokens needs {needed:,} bytes of KV cache "
        f"({plan.blocks_per_request} blocks and the null block, {plan.block_bytes:,} bytes each); "
        f"there are {inputs.kv_memory_bytes:,}",
        remedy=remedy,
        error="ValueError",
        max_model_len=largest,
    )
