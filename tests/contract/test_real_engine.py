"""The real vLLM engine on the demo pair: predicted = actual, the same tokens, a drafter whose KV cache is right."""

import json
import signal
import subprocess
import sys
import time
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import pytest

from deployments.local_haproxy import free_port
from hybrid_serve.demo.geometry import DRAFT_DIR, TARGET_DIR
from tests.contract.engine_process import ROOT, Run, agreement, run_engine, started
from tests.contract.run_engine import PROMPTS

pytestmark = [pytest.mark.contract, pytest.mark.engines, pytest.mark.timeout(600)]


WITHOUT_DRAFTER = 16
"""So many of the prompts for the engine that writes one token a step."""


@cache
def best() -> Run:
    return started(prompts=PROMPTS, then={"prompts": 12, "temperature": 0.2})


@cache
def stock() -> Run:
    return started(policy="stock", prompts=PROMPTS)


@cache
def without_drafter() -> Run:
    return started(drafter=False, prompts=WITHOUT_DRAFTER)


@pytest.mark.parametrize("run", [best, stock, without_drafter], ids=["best", "stock", "best without drafter"])
def test_the_engine_gets_what_was_predicted_to_the_block(run: Any) -> None:
    answer = run().answer
    assert answer["differences"] == []
    assert answer["report"]["num_blocks"] == answer["plan"]["num_blocks"]
    rows = [[g["kind"], g["layers"], g["block_size"], g["page_size_bytes"]] for g in answer["plan"]["groups"]]
    assert answer["report"]["groups"] == rows
    assert run().logged_kv_tokens == answer["report"]["kv_tokens"]


def test_the_plan_holds_at_least_1_6_times_stocks_tokens_in_the_same_memory() -> None:
    assert best().logged_kv_tokens >= 1.6 * stock().logged_kv_tokens
    assert best().answer["stock_kv_tokens"] == stock().logged_kv_tokens


def test_greedy_tokens_are_the_same_under_the_stock_plan_and_under_ours() -> None:
    ours, theirs = best().answer["outputs"], stock().answer["outputs"]
    assert len(ours) == PROMPTS and min(map(len, ours)) > 0
    assert ours == theirs


def test_greedy_tokens_are_the_same_with_and_without_the_drafter() -> None:
    ours, plain = best().answer["outputs"][:WITHOUT_DRAFTER], without_drafter().answer["outputs"]
    assert sum(map(len, ours)) > 20 * WITHOUT_DRAFTER
    assert agreement(ours, plain) >= 0.99


def test_the_drafter_is_accepted_as_much_as_under_stock() -> None:
    ours, theirs = best().answer["mean_acceptance_length"], stock().answer["mean_acceptance_length"]
    assert ours >= 3.0
    assert ours == pytest.approx(theirs, rel=0.02)


def test_acceptance_falls_when_the_drafters_layers_share_a_page() -> None:
    corrupted = started(prompts=12, worker_extension_cls="tests.contract.corrupting_worker.CorruptingWorkerExtension")
    assert corrupted.answer["differences"] == []
    assert corrupted.answer["mean_acceptance_length"] < 0.8 * best().answer["mean_acceptance_length"]
    assert agreement(corrupted.answer["outputs"], best().answer["outputs"][:12]) >= 0.98


def test_acceptance_falls_when_the_drafter_is_fed_the_states_before_its_layers() -> None:
    """As vLLM 0.20.1 does without `dflash_hidden_states`: the demo drafter was trained on the states after 1, 4, 6."""
    early = started(prompts=12, aux_layers=[1, 4, 6]).answer
    assert early["differences"] == []
    assert early["mean_acceptance_length"] < 0.6 * best().answer["mean_acceptance_length"]
    assert agreement(early["outputs"], best().answer["outputs"][:12]) >= 0.98


def test_a_plan_is_split_over_two_workers() -> None:
    split = started(prompts=12, tensor_parallel_size=2).answer
    assert split["report"]["workers"] == 2 and split["differences"] == []
    assert split["report"]["groups"] != best().answer["report"]["groups"], "a worker has half of the heads and states"
    assert agreement(split["outputs"], best().answer["outputs"][:12]) >= 0.98
    assert split["mean_acceptance_length"] >= 0.9 * best().answer["mean_acceptance_length"]


def test_answers_at_a_temperature_are_drafted_and_make_sense() -> None:
    sampled = best().answer["then"]
    assert sampled["mean_acceptance_length"] >= 3.0
    assert agreement(sampled["outputs"], best().answer["outputs"][:12]) >= 0.6


def test_a_plugin_that_is_not_loaded_ends_the_start_even_if_the_core_then_hangs() -> None:
    failed = run_engine(
        environment={"VLLM_PLUGINS": "another_plugin"},
        worker_extension_cls="tests.contract.leaving_worker.LeavingWorkerExtension",
    )
    assert "Engine core initialization failed" in failed.answer["error"]
    assert "not in force in the engine core" in failed.log and "VLLM_PLUGINS" in failed.log
    assert "of its workers: killed" in failed.log


def test_vllms_own_server_runs_a_plan_without_ray(tmp_path: Path) -> None:
    port, log = free_port(), tmp_path / "log"
    command = [
        sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(TARGET_DIR),
        "--host", "127.0.0.1", "--port", str(port), "--max-model-len", "2048", "--max-num-seqs", "16",
        "--max-num-batched-tokens", "2048", "--enforce-eager", "--no-enable-prefix-caching",
        "--kv-cache-memory-bytes", str(1 << 30), "--mamba-ssm-cache-dtype", "float32",
        "--speculative-config", json.dumps({"method": "dflash", "model": str(DRAFT_DIR), "num_speculative_tokens": 7}),
        "--additional-config", '{"hybrid_serve": {"plan": "auto"}}',
    ]  # fmt: skip
    # A pipe that nobody reads would stop the server once it is full.
    server = subprocess.Popen(command, stdout=log.open("w"), stderr=subprocess.STDOUT, cwd=ROOT)
    try:
        url = f"http://127.0.0.1:{port}"
        wait_until_healthy(url, server, log)
        body = {"model": str(TARGET_DIR), "prompt": "Request: count", "max_tokens": 4}
        assert httpx.post(f"{url}/v1/completions", json=body, timeout=60).status_code == 200
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(timeout=60)
    assert Run({}, log.read_text()).logged_kv_tokens == best().logged_kv_tokens


def wait_until_healthy(url: str, server: subprocess.Popen[bytes], log: Path, seconds: float = 300) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        assert server.poll() is None, f"the server ended: {log.read_text()[-3000:]}"
        try:
            if httpx.get(f"{url}/health", timeout=2).status_code == 200:
                return
        except httpx.HTTPError:
            time.sleep(0.5)
    raise AssertionError(f"the server was not healthy within {seconds} s: {log.read_text()[-3000:]}")
