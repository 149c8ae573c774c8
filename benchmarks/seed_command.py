"""The command of the original report, on an installed vLLM: as it was, with the plugin there, and on a KV plan.

    python -m benchmarks.seed_command --target DIR --drafter DIR --output benchmarks/results/seed-command-h200.json

Each way is a `vllm serve` of its own. It is waited for until it answers or ends; one that answers is asked a few
completions. What it logged of its KV cache, or its last error, is kept.
"""

import argparse
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx

from benchmarks.in_turn import in_rows, kept

WAYS = {
    "stock": ({"VLLM_PLUGINS": ""}, []),
    "plugin, no plan": ({}, []),
    "plugin, plan": ({}, ["--additional-config", '{"hybrid_serve": {"plan": "auto"}}']),
}
"""Environment and further arguments of each; vLLM loads no plugin if VLLM_PLUGINS names none."""

PROMPTS = 4
ANSWER_TOKENS = 32


def parser() -> argparse.ArgumentParser:
    """The command line."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--target", required=True)
    options.add_argument("--drafter", required=True)
    options.add_argument(
        "--ways", default=",".join(map(str, range(len(WAYS)))), help="which, by number: " + "; ".join(WAYS)
    )
    options.add_argument("--more", default="", help="further arguments of `vllm serve`, in one string")
    options.add_argument("--timeout", type=float, default=400, help="seconds for one way to answer or end")
    options.add_argument("--output", type=Path)
    options.add_argument("--logs", type=Path, required=True, help="folder for the servers' logs")
    return options


def seed_arguments(options: argparse.Namespace, port: int) -> list[str]:
    """`vllm serve` and the flags of the original report."""
    drafting = {"method": "dflash", "model": options.drafter, "num_speculative_tokens": 8}
    return [
        sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", options.target, "--served-model-name=model",
        "--host=127.0.0.1", f"--port={port}", "--speculative-config", json.dumps(drafting),
        "--attention-backend=flash_attn", "--max-num-batched-tokens=32768", "--max-num-seqs=16",
        "--moe-backend=triton", "--max-model-len=183872", *options.more.split(),
    ]  # fmt: skip


def run(way: str, options: argparse.Namespace) -> dict[str, Any]:
    """One server's life."""
    environment, arguments = WAYS[way]
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    options.logs.mkdir(parents=True, exist_ok=True)
    path = options.logs / (way.replace(", ", "-").replace(" ", "-") + ".log")
    started = time.monotonic()
    with path.open("w") as log:
        server = subprocess.Popen(
            [*seed_arguments(options, port), *arguments], env=os.environ | environment, stdout=log, stderr=log,
            start_new_session=True,
        )  # fmt: skip
    try:
        found = answers(server, f"http://127.0.0.1:{port}", options.timeout)
        seconds = round(time.monotonic() - started, 1)
    finally:
        stop(server)
    text = path.read_text(errors="replace")
    return found | {"seconds": seconds, "kv_cache": logged(text), "differences": []} | failure(found, text)


def answers(server: "subprocess.Popen[bytes]", url: str, timeout: float) -> dict[str, Any]:
    """What a server that came up answered; how one that did not, ended."""
    end = time.monotonic() + timeout
    with httpx.Client(base_url=url, timeout=60) as client:
        while time.monotonic() < end:
            if server.poll() is not None:
                return {"serves": False, "exit_status": server.returncode}
            try:
                if client.get("/health").status_code == 200:
                    return {"serves": True, "answers": [ask(client, number) for number in range(PROMPTS)]}
            except httpx.TransportError:
                pass
            time.sleep(0.5)
    return {"serves": False, "exit_status": f"no answer within {timeout:g} s"}


def ask(client: httpx.Client, number: int) -> dict[str, Any]:
    """One greedy completion: prompt and answer in tokens."""
    prompt = "The quick brown fox jumps over the lazy dog. " * (20 * (number + 1))
    body = {"model": "model", "prompt": prompt, "max_tokens": ANSWER_TOKENS, "temperature": 0, "ignore_eos": True}
    answer = client.post("/v1/completions", json=body)
    answer.raise_for_status()
    usage: dict[str, Any] = answer.json()["usage"]
    return {name: usage[name] for name in ("prompt_tokens", "completion_tokens")}


def logged(text: str) -> dict[str, str]:
    """vLLM's own lines about its KV cache, and the plugin's."""
    patterns = {
        "kv_tokens": r"GPU KV cache size: ([\d,]+) tokens",
        "concurrency": r"Maximum concurrency for [\d,]+ tokens per request: ([\d.]+x)",
        "plan": r"hybrid_serve: (KV plan .*)",
        "hidden_states": r"hybrid_serve: (vLLM \S+ takes .*)",
        "sliding": r"hybrid_serve: (vLLM \S+ runs .*)",
    }
    found = {name: re.findall(pattern, text) for name, pattern in patterns.items()}
    return {name: matches[-1] for name, matches in found.items() if matches}


def failure(found: dict[str, Any], text: str) -> dict[str, str]:
    """The error that ended a server: the last raised in its engine core."""
    if found["serves"]:
        return {}
    errors = re.findall(r"(?:^|\s)((?:[A-Za-z_][\w.]*)?(?:Error|Exception)\b(?:: .*)?)$", text, re.MULTILINE)
    telling = [error for error in errors if "Engine core initialization failed" not in error]
    return {"error": telling[-1] if telling else text[-800:]}


def stop(server: "subprocess.Popen[bytes]") -> None:
    """Ends the server and what it started."""
    for sign, patience in ((signal.SIGTERM, 20), (signal.SIGKILL, 20)):
        try:
            os.killpg(server.pid, sign)
            server.wait(patience)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue


def table(results: list[tuple[str, dict[str, Any]]]) -> str:
    """One row a way."""
    rows = ["| way | outcome | KV tokens | concurrency | after |", "|---|---|---|---|---|"]
    for way, result in results:
        outcome = f"answered {len(result['answers'])} of {PROMPTS}" if result["serves"] else result["error"][:400]
        cache = result["kv_cache"]
        rows.append(
            f"| {way} | {outcome} | {cache.get('kv_tokens', '')} | {cache.get('concurrency', '')} | "
            f"{result['seconds']} s |"
        )
    return "\n".join(rows)


def main() -> int:
    """Exit status 1 if the way with a plan does not serve."""
    arguments = sys.argv[1:]
    options = parser().parse_args(arguments)
    names = [list(WAYS)[int(number)] for number in options.ways.split(",")]
    results = [(way, run(way, options)) for way in names]
    print(table(results))
    if options.output:
        kept("benchmarks.seed_command", options.output, arguments, in_rows(results, table(results)))
    return int(any(not result["serves"] for way, result in results if way == "plugin, plan"))


if __name__ == "__main__":
    sys.exit(main())
