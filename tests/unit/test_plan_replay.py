"""ReplaySSM: one state and a ring of inputs, where a release has it."""

from dataclasses import replace

import pytest

from hybrid_serve.facts.capabilities import CAPABILITIES
from hybrid_serve.facts.layers import Layers, MambaLayers
from hybrid_serve.plan.best import best
from hybrid_serve.plan.capacity import floor_bytes, states_per_request
from hybrid_serve.plan.inputs import PlanInputs
from hybrid_serve.plan.replay import replays, ring_bytes, ring_tokens, with_replayssm
from hybrid_serve.plan.stock import stock
from hybrid_serve.plan.verdict import Impossible
from hybrid_serve.plan.workload import state_bytes_of_a_request
from tests.cases import CASES, case_named, inputs_of, with_settings

NEMOTRON = MambaLayers(
    kind="mamba2", count=23, num_k_heads=8, num_v_heads=128, head_k_dim=128, head_v_dim=64, conv_kernel=4
)


def seed(version: str = "0.29.0") -> PlanInputs:
    return inputs_of(case_named("seed-measured-20g"), CAPABILITIES[version])


def mamba2(version: str) -> PlanInputs:
    inputs = seed(version)
    return replace(inputs, target=Layers(buckets=(NEMOTRON, *inputs.target.attention)))


def test_no_release_replays_a_draft_of_gdn_layers_and_0_32_does_of_mamba2_layers() -> None:
    kinds = {version: engine.replayssm_kinds for version, engine in CAPABILITIES.items()}
    assert all("gdn" not in found for found in kinds.values())
    assert {version for version, found in kinds.items() if "mamba2" in found} == {"0.32.0", "0.33.0"}


def test_unasked_for_it_changes_nothing() -> None:
    assert states_per_request(mamba2("0.32.0")) == 9
    assert not replays(mamba2("0.32.0"))


def test_a_replayed_draft_holds_one_state_and_a_ring_in_each_layer() -> None:
    snapshots = mamba2("0.32.0")
    replayed = with_settings(snapshots, use_replayssm=True)
    assert states_per_request(replayed) == 1 and ring_tokens(replayed) == 16 + 1 + 8
    ring = ring_bytes(NEMOTRON, key_heads=8, value_heads=128, tokens=25)
    assert ring == 25 * (128 * 64 * 2 + 128 * 4 + 8 * 128 * 2)
    state = state_bytes_of_a_request(snapshots) // (23 * 9)
    assert state_bytes_of_a_request(replayed) == 23 * (state + ring)
    assert floor_bytes(replayed, 8192) < floor_bytes(snapshots, 8192)


def test_for_gdn_layers_it_is_an_estimate_on_a_release_that_is_not_there() -> None:
    what_if = with_replayssm(seed())
    assert what_if is not None
    assert state_bytes_of_a_request(what_if) == 30 * (2_277_376 + 515_200)
    verdict, today = best(what_if), best(seed())
    assert not isinstance(verdict, Impossible) and not isinstance(today, Impossible)
    assert verdict.plan.kv_tokens > today.plan.kv_tokens


@pytest.mark.parametrize(
    ("inputs", "told"),
    [
        (with_settings(seed("0.33.0"), use_replayssm=True), "gdn"),
        (with_settings(mamba2("0.29.0"), use_replayssm=True), "mamba2"),
        (with_settings(mamba2("0.33.0"), use_replayssm=True, prefix_caching=True), "prefix caching"),
        (with_settings(mamba2("0.33.0"), use_replayssm=True, replayssm_buffer_len=8), "needs 9"),
    ],
    ids=["GDN", "a release without it", "prefix caching", "a ring shorter than the draft"],
)
def test_where_vllm_refuses_it_so_do_we(inputs: PlanInputs, told: str) -> None:
    for verdict in (stock(inputs), best(inputs)):
        assert isinstance(verdict, Impossible) and told in verdict.reason and verdict.error == "ValueError"


def test_it_brings_nothing_without_a_draft_or_without_states() -> None:
    assert with_replayssm(with_settings(replace(seed(), drafter=None), num_speculative_tokens=0)) is None
    assert with_replayssm(with_settings(seed(), prefix_caching=True)) is None
    plain = next(inputs_of(case, CAPABILITIES["0.29.0"]) for case in CASES if not case["target"].get("mamba"))
    assert with_replayssm(plain) is None
