"""`hybrid-serve plan` as a user runs it, on folders that hold nothing but a config.json."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from hybrid_serve.cli import main
from tests.unit.facts_checkpoints import dflash, qwen3_5, write_checkpoint

FIELDS = {
    "verdict", "reason", "remedy", "vllm", "pages", "block_bytes", "groups", "num_blocks", "kv_tokens", "concurrency",
    "request_bytes", "floor_bytes", "efficiency",
}  # fmt: skip
GROUP_FIELDS = {"kind", "owner", "layers", "block_size", "page_size_bytes", "padding_bytes"}


@pytest.fixture
def seed(tmp_path: Path) -> list[str]:
    """Qwen3.5-35B-A3B and its drafter, as arguments."""
    target = write_checkpoint(tmp_path / "target", qwen3_5())
    drafter = write_checkpoint(tmp_path / "drafter", dflash())
    return ["plan", "--target", target, "--drafter", drafter, "--num-speculative-tokens", "8"]


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    status = main([*arguments, "--json"])
    value: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert (status == 1) == (value["verdict"] == "impossible")
    return value


def test_the_seed_on_stock_vllm_is_what_was_measured(seed: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    stock = answer(
        capsys, *seed, "--kv-memory", "20GiB", "--max-model-len", "131072", "--max-num-batched-tokens", "8192",
        "--policy", "stock",
    )  # fmt: skip
    assert set(stock) >= FIELDS
    assert all(set(group) == GROUP_FIELDS for group in stock["groups"])
    assert (stock["verdict"], stock["pages"], len(stock["groups"])) == ("fits", "uniform", 46)
    assert (stock["kv_tokens"], round(stock["concurrency"], 2)) == (569_154, 4.34)


def test_the_best_plan_is_packed_and_needs_the_plugin(seed: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, *seed, "--gpu", "H20", "--max-model-len", "131072", "--context", "8192")
    assert (found["verdict"], found["pages"]) == ("needs_patch", "packed")
    assert found["efficiency"] > 0.96
    assert found["request_bytes"] * found["efficiency"] == pytest.approx(found["floor_bytes"], rel=1e-3)
    assert "additional-config" in found["remedy"]
    for group in found["groups"]:
        assert 0 <= group["padding_bytes"] < found["block_bytes"]


def test_kv_dtypes_tensor_parallelism_and_context_change_the_answer(
    seed: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    base = answer(capsys, *seed, "--kv-memory", "20GiB")
    fp8 = answer(capsys, *seed, "--kv-memory", "20GiB", "--kv-dtype", "fp8", "--draft-kv-dtype", "bf16")
    halved = answer(capsys, *seed, "--kv-memory", "20GiB", "--tp", "2")
    cached = answer(capsys, *seed, "--kv-memory", "20GiB", "--prefix-caching")
    assert fp8["floor_bytes"] < base["floor_bytes"]
    assert halved["floor_bytes"] * 2 == base["floor_bytes"]
    assert cached["floor_bytes"] - base["floor_bytes"] == 30 * 2_277_376


def test_without_a_drafter_a_cpu_plan_has_only_the_targets_groups(
    seed: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    found = answer(capsys, "plan", "--target", seed[2], "--drafter", "none", "--device", "cpu", "--kv-memory", "4GiB")
    assert {group["owner"] for group in found["groups"]} == {"target"}
    assert found["pages"] == "uniform"


def test_too_little_memory_is_impossible_with_the_largest_context(
    seed: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    found = answer(capsys, *seed, "--kv-memory", "1GiB", "--max-model-len", "131072")
    assert found["verdict"] == "impossible" and found["groups"] == [] and found["kv_tokens"] is None
    assert 0 < found["max_model_len"] < 131072
    assert f"{found['max_model_len']:,}" in found["remedy"]
    assert answer(capsys, *seed, "--kv-memory", "1GiB", "--max-model-len", str(found["max_model_len"]))["kv_tokens"]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (["--num-speculative-tokens", "99"], "15"),
        (["--target", "/no/such/folder"], "/no/such/folder"),
        (["--gpu", "H900"], "RTX PRO 6000"),
        (["--vllm", "0.1.0"], "0.29.0"),
        (["--max-model-len", "900000"], "262144"),
    ],
    ids=["K beyond the drafter's block", "no such folder", "unknown GPU", "unknown vLLM", "longer than the target"],
)
def test_a_mistake_is_told_with_what_would_be_right(
    seed: list[str], capsys: pytest.CaptureFixture[str], change: list[str], told: str
) -> None:
    memory = [] if "--gpu" in change else ["--kv-memory", "20GiB"]
    assert main([*seed, *memory, *change]) == 2
    captured = capsys.readouterr()
    assert told in captured.err and "Traceback" not in captured.err and captured.out == ""


def test_the_table_shows_stock_beside_the_plan(seed: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*seed, "--kv-memory", "20GiB"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("stock") for line in lines) and any(line.startswith("best") for line in lines)
    assert any(line.startswith("3 x") or " mamba" in line for line in lines)


def test_it_answers_within_a_second(seed: list[str]) -> None:
    command = [sys.executable, "-m", "hybrid_serve.cli", *seed, "--kv-memory", "20GiB", "--json"]
    subprocess.run(command, check=True, capture_output=True)
    started = time.monotonic()
    subprocess.run(command, check=True, capture_output=True)
    assert time.monotonic() - started < 1.0
