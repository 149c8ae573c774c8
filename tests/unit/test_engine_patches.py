"""Which patch serves which vLLM, and what is said of a drafter that an old one runs wrongly."""

import os
import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from hybrid_serve.engine.drafter_faults import sliding_as_full
from hybrid_serve.engine.patches import dflash_hidden_states, patch_for
from hybrid_serve.engine.resolve import LAYOUT_VARIABLE, check_release, resolve, take_back_layout
from hybrid_serve.facts.capabilities import CAPABILITIES, capabilities
from hybrid_serve.facts.layers import AttentionLayers, Layers
from hybrid_serve.plan.best import best
from hybrid_serve.plan.decide import decide
from hybrid_serve.plan.kv_plan import KVPlan
from hybrid_serve.plan.verdict import NeedsPatch
from tests.cases import case_named, inputs_of


@pytest.mark.parametrize(
    ("version", "module"),
    [
        ("0.20.1", "uniform_pages"),
        ("0.25.1", "uniform_pages"),
        ("0.26.0", "kv_cache_utils"),
        ("0.29.0+cpu", "kv_cache_utils"),
        ("0.32.0", "kv_cache_utils"),
        ("0.33.0", "kv_cache_config_builder"),
        ("0.33.1", "kv_cache_config_builder"),
    ],
)
def test_each_release_gets_the_patch_of_its_api(version: str, module: str) -> None:
    assert patch_for(version).__name__ == f"hybrid_serve.engine.patches.{module}"  # type: ignore[attr-defined]


@pytest.mark.parametrize("version", ["0.19.0", "0.20.0", "0.34.0", "1.0.0", "unknown"])
def test_an_unsupported_release_is_refused_with_the_supported_ones(version: str) -> None:
    with pytest.raises(
        ValueError, match=rf"vLLM {version} is not supported: supported are 0\.20\.1 to 0\.33\.x"
    ) as said:
        patch_for(version)
    assert all(release in str(said.value) for release in CAPABILITIES)


def configured(method: str = "dflash", **drafter: Any) -> Any:
    hf_config = SimpleNamespace(**drafter)
    model = SimpleNamespace(hf_config=hf_config)
    return SimpleNamespace(speculative_config=SimpleNamespace(method=method, draft_model_config=model))


def test_hidden_states_are_taken_after_the_target_layers_once_and_for_all() -> None:
    config = configured(dflash_config={"target_layer_ids": [1, 4, 6]})
    assert dflash_hidden_states.correct(config) == (2, 5, 7)
    assert dflash_hidden_states.correct(config) is None
    drafter = config.speculative_config.draft_model_config.hf_config
    assert drafter.eagle_aux_hidden_state_layer_ids == [2, 5, 7]
    assert drafter.dflash_config == {"target_layer_ids": [1, 4, 6]}


@pytest.mark.parametrize(
    "config",
    [
        SimpleNamespace(speculative_config=None),
        configured("eagle3", dflash_config={"target_layer_ids": [1]}),
        configured(dflash_config={}),
        configured(dflash_config=None),
        configured(dflash_config={"target_layer_ids": [1]}, eagle_aux_hidden_state_layer_ids=[3]),
    ],
    ids=["no drafter", "another method", "no ids", "no section", "ids in vLLM's counting"],
)
def test_where_there_is_nothing_to_correct_nothing_is(config: Any) -> None:
    assert dflash_hidden_states.correct(config) is None


def attention(kind: Any, count: int, window: int | None = None) -> AttentionLayers:
    return AttentionLayers(kind=kind, count=count, kv_heads=8, head_dim=128, window=window)


def test_sliding_layers_that_run_as_full_are_said_with_their_numbers() -> None:
    said = sliding_as_full(Layers(buckets=(attention("sliding", 5, 2048), attention("full", 1))), "0.20.1")
    assert said is not None
    assert "vLLM 0.20.1 runs 5 of the drafter's 6 layers with full attention" in said
    assert "window of 2,048 tokens" in said and "vLLM 0.26 or newer" in said


def test_a_drafter_without_sliding_layers_is_not_warned_of() -> None:
    assert sliding_as_full(Layers(buckets=(attention("full", 6),)), "0.20.1") is None


def plan_for(version: str) -> KVPlan:
    verdict = best(inputs_of(case_named("seed-measured-40g"), capabilities(version)))
    assert isinstance(verdict, NeedsPatch)
    return verdict.plan


@pytest.mark.parametrize(("planned", "running"), [("0.29.0", "0.29.0+cpu"), ("0.29.0", "0.29.1"), ("0.20.1", "0.22.0")])
def test_a_plan_runs_on_a_release_that_lays_out_its_kv_cache_alike(planned: str, running: str) -> None:
    check_release(plan_for(planned), running)


@pytest.mark.parametrize(("planned", "running"), [("0.29.0", "0.33.0"), ("0.32.0", "0.29.0+cpu"), ("0.26.0", "0.20.1")])
def test_a_plan_for_another_release_is_refused_with_both_versions(planned: str, running: str) -> None:
    with pytest.raises(ValueError, match=f"is for vLLM {planned}, and this is vLLM {re.escape(running)}"):
        check_release(plan_for(planned), running)


def test_the_layout_of_a_plan_ends_with_its_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("vllm", reason="vLLM is not installed")
    monkeypatch.delenv(LAYOUT_VARIABLE, raising=False)
    packed = decide(inputs_of(case_named("seed-measured-20g"), CAPABILITIES["0.29.0"])).plan
    assert packed is not None and packed.kv_cache_layout == "BLNHC"
    other = replace(packed, kv_cache_layout="another")
    for plan in (packed, other, packed):
        take_back_layout()
        assert LAYOUT_VARIABLE not in os.environ
        resolve(plan, SimpleNamespace(additional_config={}))
        assert os.environ[LAYOUT_VARIABLE] == plan.kv_cache_layout
    with pytest.raises(ValueError, match="needs VLLM_KV_CACHE_LAYOUT=another, the environment has BLNHC"):
        resolve(other, SimpleNamespace(additional_config={}))
    take_back_layout()
    monkeypatch.setenv(LAYOUT_VARIABLE, "BLNHC")
    resolve(packed, SimpleNamespace(additional_config={}))
    take_back_layout()
    assert os.environ[LAYOUT_VARIABLE] == "BLNHC", "the user's"
