"""`best()` on every release: what that release would refuse, or read wrongly, is never proposed."""

import time
from collections import Counter
from dataclasses import replace
from math import lcm

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hybrid_serve.facts.capabilities import CAPABILITIES, capabilities
from hybrid_serve.facts.layers import Layers, MambaLayers
from hybrid_serve.plan.best import best
from hybrid_serve.plan.buckets import AttentionBucket, buckets_of
from hybrid_serve.plan.capacity import checkpoint_block, kernel_block, states_per_request
from hybrid_serve.plan.inputs import PlanInputs
from hybrid_serve.plan.kv_plan import KVPlan
from hybrid_serve.plan.refusals import one_group_drafter
from hybrid_serve.plan.search import score
from hybrid_serve.plan.specs import align
from hybrid_serve.plan.stock import stock
from hybrid_serve.plan.verdict import Fits, Impossible, NeedsPatch
from tests.cases import CASES, case_named, inputs_of, with_settings
from tests.strategies import release_problems

RELEASES = sorted(CAPABILITIES)
relaxed = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
every_release = pytest.mark.parametrize("release", RELEASES)


def planned(inputs: PlanInputs) -> KVPlan | None:
    verdict = best(inputs)
    return verdict.plan if isinstance(verdict, NeedsPatch) else None


@every_release
@given(data=st.data())
@relaxed
def test_a_plan_holds_every_layer_once_in_whole_kernel_blocks(release: str, data: st.DataObject) -> None:
    inputs = data.draw(release_problems(release))
    plan = planned(inputs)
    if plan is None:
        return
    buckets = buckets_of(inputs)
    layers = Counter[int]()
    for group in plan.groups:
        layers[group.bucket] += group.layers
        bucket = buckets[group.bucket]
        assert group.content_bytes <= group.page_size_bytes
        if isinstance(bucket, AttentionBucket):
            assert group.block_size % lcm(kernel_block(inputs), checkpoint_block(inputs)) == 0
            assert group.content_bytes == group.block_size * bucket.bytes_per_token
    assert layers == {bucket.index: bucket.layers for bucket in buckets}
    assert plan.block_bytes >= max(group.bytes_in_block for group in plan.groups)
    assert plan.num_blocks == inputs.kv_memory_bytes // plan.block_bytes > plan.blocks_per_request


@every_release
@given(data=st.data())
@relaxed
def test_a_plan_uses_only_what_the_release_and_the_device_have(release: str, data: st.DataObject) -> None:
    inputs = data.draw(release_problems(release))
    plan = planned(inputs)
    if plan is None:
        return
    engine = inputs.capabilities
    if plan.pages == "packed":
        assert engine.block_outermost and inputs.device == "cuda"
    else:
        assert len({group.page_size_bytes for group in plan.groups}) == 1
    pads = engine.cpu_pads_attention_pages if inputs.device == "cpu" else engine.pads_attention_pages
    if not pads:
        assert all(g.content_bytes == g.page_size_bytes for g in plan.groups if g.kind != "mamba")
    if one_group_drafter(inputs) and inputs.drafter is not None:
        assert sum(group.owner == "drafter" for group in plan.groups) == 1
    if engine.dflash_sliding_as_full and inputs.method == "dflash":
        assert not any(group.owner == "drafter" and group.kind == "sliding" for group in plan.groups)


@every_release
@given(data=st.data())
@relaxed
def test_with_prefix_caching_the_mamba_block_is_the_smallest_and_divides_all(release: str, data: st.DataObject) -> None:
    inputs = data.draw(release_problems(release))
    plan = planned(inputs) if inputs.settings.prefix_caching else None
    if plan is None:
        return
    smallest = min(group.block_size for group in plan.groups)
    assert all(group.block_size == smallest for group in plan.groups if group.kind == "mamba")
    assert all(group.block_size % smallest == 0 for group in plan.groups)
    if not one_group_drafter(inputs):
        assert smallest == align(buckets_of(inputs), inputs).block_size
    if inputs.capabilities.block_within_batch:
        assert smallest <= inputs.settings.max_num_batched_tokens


@every_release
@given(data=st.data())
@relaxed
def test_best_is_never_below_stock(release: str, data: st.DataObject) -> None:
    inputs = data.draw(release_problems(release))
    unaided, verdict = stock(inputs), best(inputs)
    if isinstance(unaided, Fits):
        assert not isinstance(verdict, Impossible)
        assert score(verdict.plan, inputs) <= score(unaided.plan, inputs)


@every_release
def test_best_answers_any_case_of_the_table_within_50_ms(release: str) -> None:
    for case in CASES:
        inputs = inputs_of(case, capabilities(release))
        best(inputs)
        spent = []
        for _ in range(3):
            start = time.process_time()
            best(inputs)
            spent.append(time.process_time() - start)
        assert min(spent) < 0.05, case["name"]


def test_the_first_release_starts_where_it_asserted() -> None:
    inputs = inputs_of(case_named("seed-measured-40g"), capabilities("0.20.1"))
    assert isinstance(stock(inputs), Impossible)
    plan = planned(inputs)
    assert plan is not None and plan.pages == "uniform" and plan.concurrency > 6
    assert [(g.kind, g.layers) for g in plan.groups if g.owner == "drafter"] == [("full", 6)]


def test_a_release_whose_blocks_must_fit_a_batch_gets_ones_that_do() -> None:
    inputs = inputs_of(case_named("35b-new-small-batches"), capabilities("0.20.1"))
    assert isinstance(stock(inputs), Impossible)
    plan = planned(inputs)
    assert plan is not None
    assert min(group.block_size for group in plan.groups) <= inputs.settings.max_num_batched_tokens


def test_flashinfer_gdn_prefill_costs_a_state_and_blocks_of_64() -> None:
    inputs = inputs_of(case_named("35b-new-flashinfer-gdn"), capabilities("0.33.0"))
    triton = with_settings(inputs, gdn_prefill_backend="triton")
    assert (states_per_request(inputs), states_per_request(triton)) == (11, 10)
    plan = planned(inputs)
    assert plan is not None and all(group.block_size % 64 == 0 for group in plan.groups)


@pytest.mark.parametrize(("release", "states"), [("0.29.0", 2), ("0.32.0", 3), ("0.33.0", 3)])
def test_mamba2_keeps_one_state_more_for_checkpoints_from_0_32(release: str, states: int) -> None:
    inputs = inputs_of(case_named("mamba2-no-drafter"), capabilities(release))
    assert isinstance(inputs.target.mamba[0], MambaLayers)
    assert states_per_request(inputs) == states


def test_without_a_patch_for_the_release_the_remedy_says_so() -> None:
    unpatched = replace(capabilities("0.33.0"), patch=None)
    verdict = best(inputs_of(case_named("seed-measured-40g"), unpatched))
    assert isinstance(verdict, NeedsPatch) and "no patch applies a plan to vLLM 0.33.0 yet" in verdict.remedy


@pytest.mark.parametrize(("release", "planned_for"), [("0.20.1", False), ("0.26.0", True)])
def test_layers_that_would_overwrite_each_other_get_no_plan(release: str, planned_for: bool) -> None:
    case = inputs_of(case_named("seed-measured-40g"), capabilities(release))
    full = replace(case.target.attention[0], count=23, kv_heads=4, head_dim=128)
    sliding = replace(full, kind="sliding", count=14, window=128)
    drafter = Layers(buckets=(replace(full, count=7, head_dim=64),))
    without_mamba = replace(case, target=Layers(buckets=(sliding, full)), drafter=drafter)
    mixed = with_settings(without_mamba, kv_dtype="fp8_per_token_head", max_model_len=8192)
    assert (planned(mixed) is not None) == planned_for


def test_a_per_token_head_dtype_carries_its_scales() -> None:
    inputs = with_settings(inputs_of(case_named("seed-measured-40g"), capabilities("0.29.0")), kv_dtype="bf16")
    for dtype in ("int8_per_token_head", "fp8_per_token_head"):
        _, target, *_ = buckets_of(with_settings(inputs, kv_dtype=dtype))
        assert isinstance(target, AttentionBucket) and target.bytes_per_token == 2 * 2 * (256 + 4)
