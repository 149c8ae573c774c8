"""Generated planning problems: hybrid geometries as they are published, and ones nobody has made yet."""

from dataclasses import replace

from hypothesis import strategies as st

from hybrid_serve.facts.capabilities import capabilities
from hybrid_serve.facts.layers import AttentionLayers, Layers, MambaLayers
from hybrid_serve.plan.inputs import EngineSettings, PlanInputs, Workload

HEAD_DIMS = st.sampled_from([64, 128, 256])
KV_HEADS = st.sampled_from([1, 2, 4, 8])


@st.composite
def targets(draw: st.DrawFn) -> Layers:
    full = draw(st.integers(1, 16))
    value_heads = draw(st.sampled_from([4, 16, 32, 48]))
    mamba = MambaLayers(
        kind="gdn",
        count=full * draw(st.integers(1, 4)) + draw(st.integers(0, 2)),
        num_k_heads=draw(st.sampled_from([4, 16])),
        num_v_heads=value_heads,
        head_k_dim=draw(st.sampled_from([64, 128])),
        head_v_dim=draw(st.sampled_from([64, 128])),
        conv_kernel=4,
        ssm_dtype=draw(st.sampled_from(["fp32", "bf16"])),
    )
    attention = AttentionLayers(kind="full", count=full, kv_heads=draw(KV_HEADS), head_dim=draw(HEAD_DIMS))
    return Layers(buckets=(mamba, attention))


@st.composite
def drafters(draw: st.DrawFn, *, mixed: bool = True) -> Layers | None:
    shape = draw(st.sampled_from(["none", "full", "sliding", "mixed"] if mixed else ["none", "full"]))
    heads, dim = draw(KV_HEADS), draw(HEAD_DIMS)
    buckets: list[AttentionLayers] = []
    if shape in ("sliding", "mixed"):
        window = draw(st.sampled_from([512, 2048, 4096]))
        count = draw(st.integers(1, 6))
        buckets.append(AttentionLayers(kind="sliding", count=count, kv_heads=heads, head_dim=dim, window=window))
    if shape in ("full", "mixed"):
        buckets.append(AttentionLayers(kind="full", count=draw(st.integers(1, 8)), kv_heads=heads, head_dim=dim))
    return Layers(buckets=tuple(buckets)) if buckets else None


@st.composite
def planning_problems(draw: st.DrawFn, *, device: str | None = None, prefix_caching: bool | None = None) -> PlanInputs:
    where = device or draw(st.sampled_from(["cuda", "cpu"]))
    drafter = draw(drafters(mixed=where == "cuda"))
    longest = draw(st.sampled_from([2048, 8192, 32768, 131072]))
    caching = prefix_caching if prefix_caching is not None else draw(st.booleans())
    settings = EngineSettings(
        tensor_parallel_size=draw(st.sampled_from([1, 2, 4])),
        kv_dtype=draw(st.sampled_from(["bf16", "fp8"])),
        draft_kv_dtype=draw(st.sampled_from(["bf16", "fp8"])),
        num_speculative_tokens=draw(st.integers(1, 15)) if drafter else 0,
        max_model_len=longest,
        max_num_batched_tokens=draw(st.sampled_from([2048, 8192, 32768])),
        prefix_caching=caching and where == "cuda",
    )
    context = draw(st.sampled_from([longest // 4, longest]))
    return PlanInputs(
        target=draw(targets()),
        drafter=drafter,
        settings=settings,
        device=where,  # type: ignore[arg-type]
        sm=90 if where == "cuda" else None,
        kv_memory_bytes=draw(st.sampled_from([1, 20, 80])) << 30,
        capabilities=capabilities("0.29.0"),
        workload=Workload(contexts=((context, 1.0),)),
    )


@st.composite
def any_targets(draw: st.DrawFn) -> Layers:
    """Hybrids of both mamba kinds, and targets without mamba layers: sliding beside full, or full alone."""
    if draw(st.integers(0, 3)):
        mamba = draw(targets()).mamba[0]
        if draw(st.integers(0, 3)) == 0:
            # Groups that tensor parallelism does not divide are refused by the model's layer, which is not asked here.
            mamba = replace(mamba, kind="mamba2", num_k_heads=draw(st.sampled_from([1, 4, 8])))
        return Layers(buckets=(mamba, *draw(targets()).attention))
    full = replace(draw(targets()).attention[0], count=draw(st.integers(2, 24)))
    if draw(st.booleans()):
        return Layers(buckets=(full,))
    sliding = replace(full, kind="sliding", window=draw(st.sampled_from([128, 1024])), count=draw(st.integers(1, 24)))
    return Layers(buckets=(sliding, full))


@st.composite
def release_problems(draw: st.DrawFn, version: str) -> PlanInputs:
    """Problems for one release, over everything that the planner takes into account there."""
    where = draw(st.sampled_from(["cuda", "cuda", "cuda", "cpu"]))
    target = draw(any_targets())
    drafter = draw(drafters())
    if drafter is not None and draw(st.integers(0, 4)) == 0:  # the target's own shape: layers that merge
        drafter = Layers(buckets=(replace(target.attention[-1], count=draw(st.integers(1, 8))),))
    method = (
        draw(st.sampled_from(["dflash", "dflash", "mtp", "eagle3", "draft_model", "dspark"])) if drafter else "ngram"
    )
    kv = ["auto", "bf16", "fp8"] + ["int8_per_token_head", "fp8_per_token_head"] * (where == "cuda")
    dtype = draw(st.sampled_from(kv))
    longest = draw(st.sampled_from([1000, 2048, 8192, 32768, 131072, 262144]))
    engine = capabilities(version)
    layouts = sorted(engine.layouts if where == "cuda" else engine.cpu_layouts)
    layout = draw(st.sampled_from([None, None, *layouts, "BLNHC", draw(st.sampled_from(["LHBNC", "BHLNC", "NHD"]))]))
    caches = bool(target.mamba) and (where == "cuda" or (drafter is None and engine.cpu_aligns))
    settings = EngineSettings(
        tensor_parallel_size=draw(st.sampled_from([1, 1, 2, 4])),
        kv_dtype=dtype,  # type: ignore[arg-type]
        draft_kv_dtype=draw(st.sampled_from(["auto", "bf16", dtype, dtype])),  # type: ignore[arg-type]
        num_speculative_tokens=draw(st.integers(1, 15)) if drafter else draw(st.sampled_from([0, 0, 4])),
        max_model_len=longest,
        max_num_batched_tokens=draw(st.sampled_from([1024, 2048, 8192, 32768])),
        prefix_caching=caches and draw(st.booleans()),
        async_scheduling=draw(st.sampled_from([None, None, False])),
        kv_cache_layout=layout,
        block_size=draw(st.sampled_from([None, None, None, 32, 64, 256])),
        gdn_prefill_backend=draw(st.sampled_from(["auto", "triton", "flashinfer"])),
    )
    return PlanInputs(
        target=target,
        drafter=drafter,
        settings=settings,
        device=where,  # type: ignore[arg-type]
        sm=draw(st.sampled_from([80, 89, 90, 90, 100, 103, 120])) if where == "cuda" else None,
        kv_memory_bytes=draw(st.integers(1 << 28, 1 << 34)) << draw(st.sampled_from([0, 4])),
        capabilities=engine,
        method=method,
        workload=Workload(contexts=((draw(st.sampled_from([longest // 4 + 1, longest])), 1.0),)),
    )
