"""Generated planning problems: hybrid geometries as they are published, and ones nobody has made yet."""

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
