"""`hybrid-serve fit`: every GPU of the catalogue, one to eight of them."""

import json
from pathlib import Path
from typing import Any

import pytest

from hybrid_serve.cli import main
from hybrid_serve.facts.catalogue import GPUS
from tests.unit.facts_checkpoints import dflash, qwen3_5, safetensors, write_checkpoint
from tests.unit.gpu_fleet import sparse_weights

GIB = 1024**3


def asked(tmp_path: Path, *, target: dict[str, Any] | None = None, files: dict[str, bytes] | None = None) -> list[str]:
    folder = write_checkpoint(tmp_path / "target", target or qwen3_5(), files)
    drafter = write_checkpoint(tmp_path / "drafter", dflash())
    return ["fit", "--target", folder, "--drafter", drafter, "--num-speculative-tokens", "8"]


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    main([*arguments, "--json"])
    value: dict[str, Any] = json.loads(capsys.readouterr().out)
    return value


def test_there_is_one_row_for_each_gpu_and_tensor_parallel_size(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = answer(capsys, *asked(tmp_path), "--context", "4096")["rows"]
    assert [(row["gpu"], row["tensor_parallel_size"]) for row in rows] == [(g, n) for g in GPUS for n in (1, 2, 4, 8)]
    assert all(row["fits"] for row in rows)
    for row in rows:  # a plan with far fewer groups may hold a little less
        assert row["best"]["groups"] <= row["stock"]["groups"]
        assert row["best"]["concurrency"] >= 0.9 * row["stock"]["concurrency"]
    h20 = rows[0]
    assert h20["best"]["concurrency"] > 1.5 * h20["stock"]["concurrency"]


def test_weights_come_from_the_safetensors_header_and_are_split_over_the_gpus(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = asked(tmp_path)
    sparse_weights(tmp_path / "target", 70 * GIB)
    found = answer(capsys, *arguments)
    assert found["weights_bytes"] == 70 * GIB and found["weights_not_counted"] == ["drafter"]
    l40s = {row["tensor_parallel_size"]: row for row in found["rows"] if row["gpu"] == "L40S"}
    assert [l40s[size]["fits"] for size in (1, 2, 4, 8)] == [False, True, True, True]
    assert l40s[1]["kv_memory_bytes"] is None and "Nothing is left" in l40s[1]["best"]["note"]
    assert l40s[8]["kv_memory_bytes"] - l40s[4]["kv_memory_bytes"] == 70 * GIB // 8


def test_without_weights_it_says_that_they_are_not_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(asked(tmp_path)) == 0
    assert "the weights of the target and the drafter are NOT COUNTED" in capsys.readouterr().out
    both = asked(tmp_path, files={"model.safetensors": safetensors({"w": bytes(64)})})
    assert main(both) == 0
    printed = capsys.readouterr().out
    assert "the weights of the drafter are NOT COUNTED" in printed and "the target and" not in printed


def test_heads_that_tensor_parallelism_does_not_divide_are_told_and_do_not_crash(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = qwen3_5(linear_num_key_heads=12, linear_num_value_heads=12)
    arguments = asked(tmp_path, target=target)
    rows = [row for row in answer(capsys, *arguments)["rows"] if row["gpu"] == "H200"]
    assert [row["fits"] for row in rows] == [True, True, True, False]
    assert "tensor_parallel_size 8 does not divide" in rows[3]["best"]["note"]
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert printed.count("tensor_parallel_size 8 does not divide") == 1 and "[1]" in printed


def test_kv_heads_that_cannot_be_shared_out_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = qwen3_5(num_key_value_heads=6, num_attention_heads=24)
    rows = [row for row in answer(capsys, *asked(tmp_path, target=target))["rows"] if row["gpu"] == "H200"]
    assert [row["fits"] for row in rows] == [True, True, False, False]
    assert "6 KV heads" in rows[2]["stock"]["note"]


def test_where_stock_crashes_best_still_fits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = answer(capsys, *asked(tmp_path), "--vllm", "0.20.1")["rows"]
    h20 = rows[0]
    assert h20["fits"] and not h20["stock"]["starts"] and h20["stock"]["kv_tokens"] is None


def test_wrong_settings_are_told_once_and_not_for_every_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*asked(tmp_path), "--context", "9000", "--max-model-len", "8192"]) == 2
    captured = capsys.readouterr()
    assert captured.err.count("9000") == 1 and captured.out == ""


def test_it_exits_with_1_where_nothing_fits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = asked(tmp_path)
    sparse_weights(tmp_path / "target", 4000 * GIB)
    assert main(arguments) == 1
    assert "yes" not in capsys.readouterr().out
