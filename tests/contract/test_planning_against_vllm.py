"""The planner against the installed vLLM's own code: stock's grouping, and what it makes of our plans."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from hybrid_serve.engine import worker_extension
from hybrid_serve.engine.apply import KINDS, PlanMismatchError, group_rows, rows_of_plan
from hybrid_serve.engine.plugin import patched, register
from hybrid_serve.plan.best import best
from hybrid_serve.plan.inputs import PlanInputs
from hybrid_serve.plan.kv_plan import KVPlan
from hybrid_serve.plan.stock import stock
from hybrid_serve.plan.verdict import Impossible, NeedsPatch
from tests.cases import case_named, inputs_of, with_settings
from tests.contract.real_vllm import kv_cache_config, real_specs, vllm_config
from tests.strategies import planning_problems

pytestmark = pytest.mark.contract
relaxed = settings(deadline=None, max_examples=120, suppress_health_check=[HealthCheck.too_slow])


@pytest.fixture(scope="module", autouse=True)
def plugin() -> Iterator[None]:
    register()
    yield


def seed(**changes: Any) -> PlanInputs:
    from hybrid_serve.facts.capabilities import capabilities

    return with_settings(inputs_of(case_named("seed-measured-20g"), capabilities("0.29.0")), **changes)


def planned(inputs: PlanInputs) -> KVPlan | None:
    verdict = best(inputs)
    return verdict.plan if isinstance(verdict, NeedsPatch) else None


def ranges(config: Any, group: Any, specs: dict[str, Any], block: int) -> list[tuple[int, int]]:
    """Byte ranges of one block of one group's layers in the backing allocation."""
    found = []
    for tensor in config.kv_cache_tensors:
        for index, name in enumerate(tensor.layers):
            if name in group.layer_names:
                start = tensor.offset + index * tensor.layer_stride + block * tensor.block_stride
                content = specs[name].page_size_bytes
                found.append((start, start + content))
    return sorted(found)


@given(planning_problems())
@relaxed
def test_stock_groups_and_capacity_are_vllms(inputs: PlanInputs) -> None:
    predicted = stock(inputs)
    if isinstance(predicted, Impossible):
        if predicted.error == "ValueError":
            with pytest.raises(ValueError, match=r"KV cache is needed|No available memory"):
                kv_cache_config(inputs)
        return
    config, tokens, concurrency = kv_cache_config(inputs)
    assert group_rows(config.kv_cache_groups, KINDS) == rows_of_plan(predicted.plan)
    assert config.num_blocks == predicted.plan.num_blocks
    assert (tokens, concurrency) == (predicted.plan.kv_tokens, predicted.plan.concurrency)


@given(planning_problems())
@relaxed
def test_vllm_gets_from_a_plan_exactly_what_was_planned(inputs: PlanInputs) -> None:
    plan = planned(inputs)
    if plan is None:
        return
    config, tokens, concurrency = kv_cache_config(inputs, plan)
    assert group_rows(config.kv_cache_groups, KINDS) == rows_of_plan(plan)
    assert config.num_blocks == plan.num_blocks
    assert (tokens, concurrency) == (plan.kv_tokens, plan.concurrency)


@given(planning_problems())
@relaxed
def test_no_two_layers_of_a_group_share_a_byte_and_none_leaves_its_block(inputs: PlanInputs) -> None:
    plan = planned(inputs)
    if plan is None:
        return
    config, _, _ = kv_cache_config(inputs, plan)
    size = config.kv_cache_tensors[0].size
    for group in config.kv_cache_groups:
        specs = dict.fromkeys(group.layer_names, group.kv_cache_spec)
        first, last = (ranges(config, group, specs, block) for block in (0, config.num_blocks - 1))
        for pages in (first, last):
            assert len(pages) == len(group.layer_names)
            assert all(a_end <= b_start for (_, a_end), (b_start, _) in pairwise(pages))
        assert last[-1][1] <= size


def test_every_real_layer_gets_a_group_and_the_drafters_are_marked() -> None:
    inputs = seed()
    plan = planned(inputs)
    config, _, _ = kv_cache_config(inputs, plan)
    names = [name for group in config.kv_cache_groups for name in group.layer_names]
    assert sorted(names) == sorted(real_specs(inputs))
    assert plan is not None
    marked = [group.is_eagle_group for group in config.kv_cache_groups]
    assert marked == [group.owner == "drafter" for group in plan.groups]


def test_a_plan_for_other_layers_is_refused_with_both_sides() -> None:
    plan = planned(seed(num_speculative_tokens=4))
    with pytest.raises(
        PlanMismatchError, match=r"30 mamba layers of 2,211,840 bytes.*30 mamba layers of 2,277,376 bytes"
    ):
        kv_cache_config(seed(), plan)


def test_without_our_entry_vllm_groups_as_if_there_were_no_plugin() -> None:
    assert patched()
    config, _, _ = kv_cache_config(seed())
    assert len(config.kv_cache_groups) == 46


def test_a_worker_refuses_groups_that_are_not_the_plans() -> None:
    inputs = seed()
    plan = planned(inputs)
    assert plan is not None
    from hybrid_serve.engine.additional import entry

    with_plan = vllm_config(inputs, additional_config=entry(plan))
    unplanned, _, _ = kv_cache_config(inputs)
    with pytest.raises(PlanMismatchError, match=r"not in force in the engine core: planned \d groups.*it made 46"):
        worker_extension.check_groups(with_plan, unplanned)
    made, _, _ = kv_cache_config(inputs, plan)
    worker_extension.check_groups(with_plan, made)
