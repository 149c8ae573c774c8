"""The agreed prefix_match_unit against the installed vLLM's own function."""

from collections.abc import Iterator
from dataclasses import replace
from math import gcd

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from hybrid_serve.engine.plugin import register
from hybrid_serve.facts.capabilities import CAPABILITIES
from hybrid_serve.facts.layers import AttentionLayers, Layers
from hybrid_serve.negotiation.agreement import prefix_unit, refused_unit
from hybrid_serve.plan.decide import decide
from hybrid_serve.plan.inputs import EngineSettings, PlanInputs
from hybrid_serve.plan.kv_plan import KVPlan, Policy
from tests.contract.real_vllm import kv_cache_config, vllm_config
from tests.contract.wheels import tree
from tests.fleets import SEED
from tests.strategies import planning_problems

pytestmark = [pytest.mark.contract, pytest.mark.timeout(600)]


@pytest.fixture(scope="module", autouse=True)
def plugin() -> Iterator[None]:
    register()
    yield


def hashed_by(inputs: PlanInputs, plan: KVPlan, unit: int | None) -> int:
    """Tokens between two prefix hashes that vLLM resolves for the groups that it makes of a plan."""
    from vllm.v1.core.kv_cache_utils import resolve_kv_cache_block_sizes

    config, _, _ = kv_cache_config(inputs, plan if plan.policy == "best" else None)
    told = vllm_config(inputs)
    told.kv_transfer_config = None
    told.cache_config.enable_prefix_caching = inputs.settings.prefix_caching
    told.cache_config.prefix_match_unit = unit
    told.cache_config.block_size = min(group.kv_cache_spec.block_size for group in config.kv_cache_groups)
    _, resolved = resolve_kv_cache_block_sizes(config, told)
    return int(resolved)


@settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(
    inputs=planning_problems(device="cuda", prefix_caching=True),
    policy=st.sampled_from(["best", "stock"]),
    other=st.integers(1, 2048),
)
def test_vllm_hashes_by_the_unit_that_we_predict_and_takes_every_one_that_we_allow(
    inputs: PlanInputs, policy: Policy, other: int
) -> None:
    plan = decide(inputs, policy).plan
    assume(plan is not None)
    assert plan is not None
    own = prefix_unit(plan)
    assert hashed_by(inputs, plan, None) == own
    shared = gcd(own, other)
    assert refused_unit(plan, shared, "a") is None and hashed_by(inputs, plan, shared) == shared
    if refused_unit(plan, other, "a") is not None and len(plan.groups) > 1:
        with pytest.raises(ValueError, match="Invalid prefix_match_unit"):
            hashed_by(inputs, plan, other)


def test_vllm_hashes_one_groups_blocks_whole_whatever_it_is_told() -> None:
    full = AttentionLayers(kind="full", count=8, kv_heads=2, head_dim=128)
    plain = EngineSettings(max_model_len=8192, prefix_caching=True, block_size=64)
    inputs = replace(SEED, target=Layers(buckets=(full,)), drafter=None, settings=plain)
    plan = decide(inputs, "stock").plan
    assert plan is not None and len(plan.groups) == 1
    assert hashed_by(inputs, plan, None) == hashed_by(inputs, plan, 16) == prefix_unit(plan) == 64
    assert refused_unit(plan, 16, "a") is not None


@pytest.mark.parametrize("release", sorted(CAPABILITIES))
def test_the_releases_that_can_be_told_a_unit_are_those_that_have_the_option(release: str) -> None:
    arguments = (tree(release) / "vllm" / "engine" / "arg_utils.py").read_text()
    assert ('"--prefix-match-unit"' in arguments) == CAPABILITIES[release].sets_prefix_match_unit
