"""Whether a drafter fits a target, and how facts become the planner's inputs."""

import pickle
import re
from dataclasses import replace
from pathlib import Path

import pytest

from hybrid_serve.facts.assemble import plan_inputs
from hybrid_serve.facts.catalogue import gpu
from hybrid_serve.facts.checkpoint import read_drafter, read_target
from hybrid_serve.facts.device import DeviceFacts
from hybrid_serve.facts.errors import FactsError, Problem
from hybrid_serve.facts.model import DrafterFacts, TargetFacts
from hybrid_serve.facts.pairing import check_pair
from hybrid_serve.plan.inputs import EngineSettings, PlanInputs, Workload
from tests.unit.facts_checkpoints import dflash, qwen3_5, write_checkpoint


@pytest.fixture
def target(tmp_path: Path) -> TargetFacts:
    return read_target(write_checkpoint(tmp_path / "target", qwen3_5()))


@pytest.fixture
def drafter(tmp_path: Path) -> DrafterFacts:
    return read_drafter(write_checkpoint(tmp_path / "draft", dflash()))


def assemble(target: TargetFacts, drafter: DrafterFacts | None, **changes: object) -> PlanInputs:
    settings = EngineSettings(num_speculative_tokens=8 if drafter else 0)
    arguments = {"settings": settings, "device": gpu("H200"), "kv_memory_bytes": 20 * 1024**3, "vllm": "0.29.0"}
    return plan_inputs(target=target, drafter=drafter, **(arguments | changes))


@pytest.mark.parametrize("tokens", [1, 8, 15])
def test_the_published_pair_fits_up_to_15_tokens(target: TargetFacts, drafter: DrafterFacts, tokens: int) -> None:
    assert check_pair(target, drafter, tokens) == ()


@pytest.mark.parametrize(
    ("changes", "tokens", "reason"),
    [
        ({"target_hidden_size": 5120}, 8, "hidden states of 5120, .* has 2048"),
        ({"hidden_size": 1024}, 8, "hidden size 1024"),
        ({"target_layer_ids": (1, 40)}, 8, r"target layers \[40\], .* 0 to 39"),
        ({"target_layer_ids": (-1,)}, 8, r"target layers \[-1\]"),
        ({"target_layer_ids": ()}, 8, "reads no target layer"),
        ({"num_target_layers": 64}, 8, "target of 64 layers, .* has 40"),
        ({"vocab_size": 151936, "mask_token_id": 0}, 8, "vocabulary of 151936, .* of 248320"),
        ({"mask_token_id": 248320}, 8, "mask token 248320"),
        ({}, 16, r"at most 15 \(block_size 16 - 1\)"),
        ({"block_size": 8}, 8, "at most 7"),
        ({}, 0, "num_speculative_tokens is 0"),
    ],
)
def test_one_mismatch_is_one_problem_with_both_figures(
    target: TargetFacts, drafter: DrafterFacts, changes: dict, tokens: int, reason: str
) -> None:
    (problem,) = check_pair(target, replace(drafter, **changes), tokens)
    assert re.search(reason, problem.reason)
    assert problem.remedy


def test_a_drafter_that_does_not_say_for_how_many_layers_it_was_trained_may_fit(
    target: TargetFacts, drafter: DrafterFacts
) -> None:
    assert check_pair(target, replace(drafter, num_target_layers=None), 8) == ()


def test_all_problems_come_at_once(target: TargetFacts, drafter: DrafterFacts) -> None:
    wrong = replace(
        drafter, target_hidden_size=1, target_layer_ids=(99,), num_target_layers=64, vocab_size=7, mask_token_id=10**6
    )
    assert len(check_pair(target, wrong, 99)) == 6


def test_facts_become_the_planners_inputs(target: TargetFacts, drafter: DrafterFacts) -> None:
    inputs = assemble(target, drafter, workload=Workload(contexts=((4096, 1.0),)))
    assert (inputs.target, inputs.drafter) == (target.layers, drafter.layers)
    assert (inputs.device, inputs.sm, inputs.kv_memory_bytes) == ("cuda", 90, 20 * 1024**3)
    assert (inputs.capabilities.version, inputs.method) == ("0.29.0", "dflash")
    assert inputs.workload.contexts == ((4096, 1.0),)


def test_no_drafter_is_fine_with_k_0(target: TargetFacts) -> None:
    assert assemble(target, None).drafter is None


def test_a_cpu_has_no_compute_capability(target: TargetFacts) -> None:
    cpu = DeviceFacts(kind="cpu", name="cpu", memory_bytes=8 * 1024**3)
    inputs = assemble(target, None, device=cpu)
    assert (inputs.device, inputs.sm) == ("cpu", None)


def test_the_drafter_is_planned_in_the_targets_dtype_as_vllm_runs_it(
    target: TargetFacts, drafter: DrafterFacts
) -> None:
    assert assemble(target, replace(drafter, dtype="fp16")).drafter_dtype == "bf16"


def test_auto_takes_the_kv_cache_dtype_that_the_checkpoint_brings(target: TargetFacts) -> None:
    quantised = replace(target, kv_cache_dtype="fp8")
    assert assemble(target, None).settings.kv_dtype == "auto"
    assert assemble(quantised, None).settings.kv_dtype == "fp8"
    assert assemble(quantised, None, settings=EngineSettings(kv_dtype="bf16")).settings.kv_dtype == "bf16"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"settings": EngineSettings(max_model_len=262145)}, "max_model_len is 262145, .* at most 262144"),
        ({"settings": EngineSettings(num_speculative_tokens=4)}, "is 4 without a drafter"),
        ({"kv_memory_bytes": 0}, "kv_memory_bytes is 0"),
        ({"vllm": "0.1.0"}, r"vLLM 0\.1\.0 is not supported"),
        ({"workload": Workload(contexts=((9000, 1.0),))}, "contexts of 9000 tokens, max_model_len is 8192"),
    ],
)
def test_what_cannot_be_planned_is_refused_with_its_figures(target: TargetFacts, changes: dict, reason: str) -> None:
    with pytest.raises(FactsError, match=reason):
        assemble(target, None, **changes)


def test_a_wrong_pair_and_a_wrong_length_are_refused_together(target: TargetFacts, drafter: DrafterFacts) -> None:
    settings = EngineSettings(num_speculative_tokens=0, max_model_len=10**6)
    with pytest.raises(FactsError) as caught:
        assemble(target, replace(drafter, vocab_size=7), settings=settings, vllm="9")
    assert len(caught.value.problems) == 4
    assert str(caught.value).count("\n- ") == 4


def test_an_error_survives_the_way_between_processes() -> None:
    error = FactsError(Problem(reason="a", remedy="b"), Problem(reason="c", remedy="d"))
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.problems, str(copy)) == (error.problems, str(error))
    assert isinstance(copy, ValueError)
