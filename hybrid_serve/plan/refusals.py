"""Why no engine starts: reasons with their numbers, and remedies."""

from hybrid_serve.facts.layers import PER_TOKEN_HEAD
from hybrid_serve.plan.buckets import AttentionBucket, buckets_of, drafter_kv_dtype, resolve_dtype
from hybrid_serve.plan.inputs import PlanInputs
from hybrid_serve.plan.kv_plan import KVPlan
from hybrid_serve.plan.replay import refused_replay
from hybrid_serve.plan.specs import LayerSpec, layer_specs
from hybrid_serve.plan.verdict import Impossible
from hybrid_serve.sizes import format_size


def refusal(inputs: PlanInputs) -> Impossible | None:
    """What this vLLM refuses on this device whatever the plan; None if nothing. In the order in which vLLM would."""
    checks = (
        _rejected,
        refused_replay,
        _unknown_layout,
        _v2_on_cpu,
        _dtypes_on_cpu,
        _shards,
        _mixed_drafter_on_cpu,
        _unsupported_layout,
        _align_on_cpu,
    )
    return next((refused for check in checks if (refused := check(inputs)) is not None), None)


def one_group_drafter(inputs: PlanInputs) -> bool:
    """The V1 model runner (the CPU's, and some methods' and releases') wants all of a drafter's layers in one group."""
    engine = inputs.capabilities
    if inputs.device == "cpu":
        return engine.cpu_drafter_in_one_group
    if inputs.method in engine.v1_methods or engine.v1_targets == "all":
        return True
    if engine.v1_targets == "none" or not inputs.target.mamba:
        return False
    forced = inputs.method in engine.v2_methods or (engine.v2_for_mixed_dflash and _mixed_dflash(inputs))
    return not forced


def _rejected(inputs: PlanInputs) -> Impossible | None:
    """Options that this release does not have."""
    engine, settings = inputs.capabilities, inputs.settings
    if inputs.method in engine.missing_methods:
        return Impossible(
            reason=f"vLLM {engine.version} has no speculative method {inputs.method}",
            remedy="use a release that has it, or another drafter",
            error="Rejected",
        )
    if inputs.drafter is None or engine.draft_kv_dtype or settings.draft_kv_dtype in ("auto", settings.kv_dtype):
        return None
    kept = drafter_kv_dtype(inputs)
    if resolve_dtype(settings.draft_kv_dtype, inputs.drafter_dtype) == kept:
        return None
    return Impossible(
        reason=f"draft_kv_dtype is {settings.draft_kv_dtype}, and vLLM {engine.version} has no option for it: "
        f"this drafter's KV cache is {kept}",
        remedy=f"leave draft_kv_dtype at auto ({kept}), or use vLLM 0.26 or newer",
        error="Rejected",
    )


def _unknown_layout(inputs: PlanInputs) -> Impossible | None:
    engine = inputs.capabilities
    return _layout_outside(engine.layouts | engine.alike_layouts, inputs)


def _unsupported_layout(inputs: PlanInputs) -> Impossible | None:
    """Layouts that exist, and that this device or this mix of layers cannot have."""
    engine = inputs.capabilities
    if inputs.device == "cpu":
        return _layout_outside(engine.cpu_layouts, inputs)
    shapes = {(getattr(s.bucket, "shape", (1,))[0], s.block_size, s.page) for s in layer_specs(inputs)}
    alike = not inputs.target.mamba and len(shapes) == 1
    return _layout_outside(engine.layouts | (engine.alike_layouts if alike else frozenset()), inputs)


def _layout_outside(known: frozenset[str], inputs: PlanInputs) -> Impossible | None:
    asked = inputs.settings.kv_cache_layout
    if asked is None or asked in known:
        return None
    return Impossible(
        reason=f"VLLM_KV_CACHE_LAYOUT={asked} is not one of those that vLLM {inputs.capabilities.version} takes for "
        f"this model on {inputs.device}: {', '.join(sorted(known))}",
        remedy="unset it, or set one of these",
        error="ValueError",
    )


def _dtypes_on_cpu(inputs: PlanInputs) -> Impossible | None:
    asked = {inputs.settings.kv_dtype, inputs.settings.draft_kv_dtype} & PER_TOKEN_HEAD
    if inputs.device != "cpu" or not asked:
        return None
    return Impossible(
        reason=f"the CPU's attention has no KV cache dtype {', '.join(sorted(asked))}",
        remedy="use auto or bf16, or a GPU",
        error="ValueError",
    )


def _shards(inputs: PlanInputs) -> Impossible | None:
    """Heads that tensor parallelism cannot split."""
    tp = inputs.settings.tensor_parallel_size
    for layers in inputs.target.mamba:
        # vLLM repeats a single mamba2 group on every GPU, and only a single one (mamba_mixer2.py).
        one_group = layers.kind == "mamba2" and layers.num_k_heads == 1
        if layers.num_v_heads % tp or (layers.num_k_heads % tp and not one_group):
            names = ("groups", "heads") if layers.kind == "mamba2" else ("key", "value heads")
            return Impossible(
                reason=f"{layers.count} {layers.kind} layers have {layers.num_k_heads} {names[0]} and "
                f"{layers.num_v_heads} {names[1]}, which tensor_parallel_size {tp} does not divide",
                remedy="use a tensor_parallel_size that divides both",
                error="AssertionError",
            )
    sides = (("target", inputs.target), ("drafter", inputs.drafter))
    for owner, side in sides:
        for attention in side.attention if side else ():
            if attention.kv_heads % tp and tp % attention.kv_heads:
                return Impossible(
                    reason=f"{attention.count} {attention.kind} attention layers of the {owner} have "
                    f"{attention.kv_heads} KV heads, which tensor_parallel_size {tp} neither divides nor is a multiple "
                    "of",
                    remedy="use a tensor_parallel_size that divides them",
                    error="AssertionError",
                )
    return None


def _v2_on_cpu(inputs: PlanInputs) -> Impossible | None:
    """What runs on the V2 model runner only, on a device that lacks the Triton it needs."""
    engine = inputs.capabilities
    forced = inputs.method in engine.v2_methods or (engine.v2_for_mixed_dflash and _mixed_dflash(inputs))
    if inputs.device != "cpu" or inputs.drafter is None or not forced:
        return None
    return Impossible(
        reason=f"vLLM {engine.version} runs this {inputs.method} drafter on the V2 model runner only, and that needs "
        "Triton",
        remedy="use a drafter whose layers are all full attention, or a GPU",
        error="ValueError",
    )


def _mixed_dflash(inputs: PlanInputs) -> bool:
    kinds = {layers.kind for layers in inputs.drafter.attention} if inputs.drafter else set()
    return inputs.method == "dflash" and len(kinds) > 1


def _mixed_drafter_on_cpu(inputs: PlanInputs) -> Impossible | None:
    """A DFlash drafter asks for the V2 model runner while its layers are built."""
    drafter = [b for b in buckets_of(inputs) if isinstance(b, AttentionBucket) and b.owner == "drafter"]
    mixed = inputs.method == "dflash" and len({bucket.kind for bucket in drafter}) > 1
    if inputs.device != "cpu" or not one_group_drafter(inputs) or not mixed:
        return None
    counts = ", ".join(f"{bucket.layers} {bucket.kind}" for bucket in drafter)
    return Impossible(
        reason=f"the drafter mixes {counts} attention layers, which needs the V2 model runner; "
        f"vLLM {inputs.capabilities.version} on a CPU has only the V1 runner",
        remedy="use a drafter whose layers are all full attention, or a GPU",
        error="NotImplementedError",
    )


def _align_on_cpu(inputs: PlanInputs) -> Impossible | None:
    hybrid_pair = bool(inputs.target.mamba) and inputs.drafter is not None
    caching = inputs.settings.prefix_caching and not inputs.capabilities.cpu_mamba_align
    if inputs.device != "cpu" or not hybrid_pair or not caching:
        return None
    return Impossible(
        reason=f"vLLM {inputs.capabilities.version} on a CPU starts with prefix caching on a hybrid model with a "
        "drafter, and its engine dies on the first request: cache mode `align` copies states in a Triton kernel",
        remedy="turn prefix caching off, or use a GPU",
        error="TypeError",
    )


def pages_do_not_unify(spec: LayerSpec, largest: int, error: str, inputs: PlanInputs) -> Impossible:
    """Stock grouping cannot give all layers one page."""
    bucket = spec.bucket
    kind = bucket.kind if isinstance(bucket, AttentionBucket) else "mamba"
    return Impossible(
        reason=f"vLLM {inputs.capabilities.version} cannot bring {bucket.layers} {kind} layers of the {bucket.owner} "
        f"({spec.page:,} bytes a page) to the largest page ({largest:,} bytes)",
        remedy="run the hybrid_serve plan (policy best), vLLM 0.26 or newer, or a drafter with the target's bytes per "
        "token",
        error=error,
    )


def scattered_drafter(groups: int, plan: KVPlan, inputs: PlanInputs) -> Impossible:
    """Stock grouping splits the drafter's layers, and the V1 model runner refuses."""
    return Impossible(
        reason=f"vLLM {inputs.capabilities.version} splits the drafter's layers into {groups} groups, and its V1 model "
        "runner wants all drafting layers in one",
        remedy="run the hybrid_serve plan (policy best), or a drafter with as many layers as the smallest bucket",
        error="AssertionError",
        computed=plan,
    )


def block_over_batch(plan: KVPlan, inputs: PlanInputs) -> Impossible | None:
    """Up to 0.26, prefix caching on a hybrid model wants the smallest block to fit into a batch."""
    engine, settings = inputs.capabilities, inputs.settings
    if not engine.block_within_batch or not settings.prefix_caching or not inputs.target.mamba:
        return None
    block_size = min(group.block_size for group in plan.groups)
    if block_size <= settings.max_num_batched_tokens:
        return None
    return Impossible(
        reason=f"with prefix caching on a hybrid model, vLLM {engine.version} wants blocks (here {block_size:,} "
        f"tokens) of at most max_num_batched_tokens ({settings.max_num_batched_tokens:,})",
        remedy=f"raise max_num_batched_tokens to {block_size:,}, or turn prefix caching off",
        error="AssertionError",
        computed=plan,
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
        computed=plan,
    )
