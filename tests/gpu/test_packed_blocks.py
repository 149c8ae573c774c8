"""Plans on a GPU, nearly all packed: whatever vLLM does with blocks, a plan answers and drafts as stock vLLM does.

Each case runs the demo target on stock vLLM and on a plan, in turn, with trained weights. The drafter is the demo's, or
one with two sliding layers (window 256) and prompts of 900 to 1,300 tokens, so that blocks fall out of the window.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from hybrid_serve.facts.errors import FactsError
from hybrid_serve.facts.probe import measure_device

ROOT = Path(__file__).parents[2]
SLIDING_DRAFTER = ROOT / "tests/data/sliding_drafter"
SHARED = {"gpu_memory_utilization": 0.1}  # what an engine wants free when it starts; several tests may run at once
KERNELS = {"attention_backend": "FLASH_ATTN", "gdn_prefill_backend": "triton", "moe_backend": "triton", **SHARED}
EAGER = json.dumps({"enforce_eager": True, **KERNELS})
GRAPHS = json.dumps(KERNELS)


def no_gpu() -> str | None:
    try:
        measure_device("cuda")
    except FactsError as error:
        return str(error)
    return None


NO_GPU = no_gpu()

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(NO_GPU is not None, reason=f"needs a CUDA GPU: {NO_GPU}"),
    pytest.mark.timeout(600),
]

Variants = tuple[dict[str, Any], dict[str, Any]]


@cache
def compared(*arguments: str) -> Variants:
    """Results of stock vLLM and of the plan under the same arguments of `benchmarks.compare_plans`."""
    output = ROOT / ".pytest_cache" / f"gpu-{abs(hash(arguments))}.json"
    command = [sys.executable, "-m", "benchmarks.compare_plans", "--device=cuda", "--order=stock,best", *arguments]
    done = subprocess.run([*command, f"--output={output}"], cwd=ROOT, capture_output=True, text=True, timeout=580)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    results = {result["variant"]: result for result in json.loads(output.read_text())["results"]}
    print(done.stdout)
    return results["stock"], results["best"]


def plain() -> Variants:
    return compared("--prompts=40", "--kv-memory=2GiB", f"--engine-args={EAGER}")


def with_cuda_graphs() -> Variants:
    return compared("--prompts=40", "--kv-memory=2GiB", f"--engine-args={GRAPHS}")


def beyond_the_window_in_chunks() -> Variants:
    return compared(
        "--long", "--prompts=40", "--kv-memory=2GiB", "--max-num-batched-tokens=512", f"--drafter={SLIDING_DRAFTER}",
        f"--engine-args={EAGER}",
    )  # fmt: skip


def preempted() -> Variants:
    return compared(
        "--long", "--prompts=48", "--concurrency=24", "--max-num-seqs=24", "--kv-memory=64MiB", "--max-model-len=1536",
        f"--drafter={SLIDING_DRAFTER}", f"--engine-args={EAGER}",
    )  # fmt: skip


def with_prefix_hits() -> Variants:
    return compared(
        "--long", "--prompts=24", "--repeat=2", "--prefix-caching", "--kv-memory=2GiB", f"--drafter={SLIDING_DRAFTER}",
        f"--engine-args={EAGER}",
    )  # fmt: skip


def with_aborts() -> Variants:
    return compared(
        "--prompts=40", "--concurrency=8", "--aborts=6", "--kv-memory=2GiB", f"--engine-args={EAGER}"
    )  # fmt: skip


def with_fp8_target() -> Variants:
    return compared(
        "--prompts=40", "--kv-dtype=fp8", "--draft-kv-dtype=bf16", "--kv-memory=2GiB", f"--engine-args={EAGER}"
    )  # fmt: skip


def split_over_two_ranks() -> Variants:
    """On two GPUs, or both ranks on the only one."""
    one = {"worker_cls": "benchmarks.shared_gpu.SharedGPUWorker", "disable_custom_all_reduce": True}
    args = {"enforce_eager": True, "distributed_executor_backend": "mp", **KERNELS, **(one if gpus() < 2 else {})}
    return compared(
        "--prompts=20", "--tensor-parallel-size=2", "--kv-memory=1GiB", f"--engine-args={json.dumps(args)}"
    )  # fmt: skip


def gpus() -> int:
    import torch

    return torch.cuda.device_count()


CASES = [
    plain, with_cuda_graphs, beyond_the_window_in_chunks, preempted, with_prefix_hits, with_aborts, with_fp8_target,
    split_over_two_ranks,
]  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_plan_answers_as_stock_does(case: Callable[[], Variants]) -> None:
    stock, best = case()
    assert best["report"]["kv_tokens"] >= 1.3 * stock["report"]["kv_tokens"]
    assert stock["differences"] == best["differences"] == []
    assert best["equal_token_share"] >= 0.99
    assert best["mean_acceptance_length"] == pytest.approx(stock["mean_acceptance_length"], rel=0.02)
    for ours, theirs in zip(best["acceptance_per_position"], stock["acceptance_per_position"], strict=True):
        assert ours == pytest.approx(theirs, abs=0.03)


@pytest.mark.parametrize("case", [case for case in CASES if case is not with_fp8_target])
def test_blocks_are_packed(case: Callable[[], Variants]) -> None:
    """All but one: for an fp8 target the demo's geometry has a better plan with uniform pages."""
    assert case()[1]["plan"]["pages"] == "packed"


def test_requests_were_preempted_under_both() -> None:
    assert all(result["preemptions"] > 0 for result in preempted())


def test_what_was_given_up_was_not_answered_to_its_end() -> None:
    assert all(0 < result["tokens_of_given_up"] < 6 * 600 for result in with_aborts())


def test_prefixes_were_found_under_both() -> None:
    assert all(result["prefix_hits"] > 0 for result in with_prefix_hits())


def test_two_ranks_confirmed_the_plan() -> None:
    assert [result["report"]["workers"] for result in split_over_two_ranks()] == [2, 2]
