"""Stock vLLM and the planned KV cache on the same device, in turn: capacity, tokens, acceptance, throughput.

    python -m benchmarks.compare_plans --device cpu --kv-memory 1GiB --output benchmarks/results/demo-cpu.json
    python -m benchmarks.compare_plans --target DIR --drafter DIR --device cuda --kv-memory 40GiB --order stock,best

Each variant is an engine in a process of its own, warmed up before it is timed. Capacities are exact; speeds are one
run each in the order given, so compare a variant that runs twice with itself first.
"""

import argparse
import asyncio
import sys
import time
from dataclasses import asdict
from functools import partial
from typing import Any

from benchmarks.engine_variants import VARIANTS, add_engine_options, counted, life_of
from benchmarks.in_turn import add_run_options, in_turn, run
from benchmarks.served import served
from hybrid_serve.demo.corpus import held_out_prompts
from hybrid_serve.engine.base import EngineConfig, EngineStats
from hybrid_serve.engine.vllm_engine import VLLMEngine

GIVE_UP_AFTER = 3
LONG_ANSWER = 600
"""A request that is to be given up asks for so many tokens, and is left after a multiple of so many pieces of them."""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_engine_options(options)
    options.add_argument("--order", default="stock,best", help=f"variants in turn: {VARIANTS}")
    options.add_argument("--prompts", type=int, default=50)
    options.add_argument("--long", action="store_true", help="only the demo's prompts of 900 to 1,300 tokens")
    options.add_argument(
        "--repeat", type=int, default=1, help="ask every prompt so often: from the second on, prefixes hit"
    )
    options.add_argument("--random-prompt-tokens", type=int, help="random token ids instead of the demo's prompts")
    options.add_argument("--aborts", type=int, default=0, help="requests given up in mid-answer beside the timed ones")
    options.add_argument("--max-tokens", type=int, default=160)
    options.add_argument("--concurrency", type=int, default=1, help="requests at once in the timed run")
    add_run_options(options)
    return options


async def run_variant(options: argparse.Namespace) -> dict[str, Any]:
    """One engine's life; `error` instead of figures if it did not start."""

    async def measured(engine: VLLMEngine, config: EngineConfig) -> dict[str, Any]:
        return await measure(engine, options, config.target.vocab_size)

    return await life_of(options, measured)


async def measure(engine: VLLMEngine, options: argparse.Namespace, vocabulary: int) -> dict[str, Any]:
    """Greedy answers to all prompts, after a warm-up on two of them; acceptance and speed of the timed run only."""
    import httpx

    requests: list[tuple[str, dict[str, Any]]] = list(bodies(options, vocabulary)) * options.repeat
    limit = asyncio.Semaphore(options.concurrency)
    limits = httpx.Limits(max_connections=None)
    async with (
        served(engine) as url,
        httpx.AsyncClient(base_url=url, timeout=options.timeout, limits=limits) as client,
    ):

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
        given_up = [
            asyncio.ensure_future(give_up(client, path, body, GIVE_UP_AFTER * (1 + number)))
            for number, (path, body) in enumerate(requests[: options.aborts])
        ]
        outputs = await asyncio.gather(*(answer(path, body) for path, body in requests))
        seconds = time.monotonic() - started
        if not all(await asyncio.gather(*given_up)):
            raise RuntimeError("a request ended before it was given up: give longer answers")
        after = await settled(engine)
    unfinished = after.generation_tokens - before.generation_tokens - sum(map(len, outputs))
    if unfinished >= max(1, options.aborts) * LONG_ANSWER:
        raise RuntimeError(f"{options.aborts} requests were given up, and the engine went on: {unfinished} tokens")
    return {
        "outputs": outputs,
        "output_tokens_per_second": round(sum(map(len, outputs)) / seconds, 1),
        "tokens_of_given_up": unfinished if options.aborts else None,
        **counted(before, after, digits=3),
        "stats": asdict(after),
    }


async def give_up(client: Any, path: str, body: dict[str, Any], pieces: int) -> bool:
    """Asks for a long answer and leaves after so many of its pieces, as a client that hangs up; False if it ended."""
    asked = body | {"max_tokens": LONG_ANSWER, "ignore_eos": True, "stream": True}
    async with client.stream("POST", path, json=asked) as response:
        response.raise_for_status()
        async for line in response.aiter_lines():
            pieces -= line.startswith("data: {")
            if pieces <= 0:
                return True
    return False


async def settled(engine: VLLMEngine) -> EngineStats:
    """The figures once nothing runs any more; what was given up may take a step to be noticed."""
    for _ in range(100):
        if not (stats := await engine.stats()).running and not stats.waiting:
            return stats
        await asyncio.sleep(0.1)
    raise RuntimeError(f"requests are left that nobody waits for: {stats}")


def bodies(options: argparse.Namespace, vocabulary: int) -> Any:
    """(path, body) of each request: the demo's held-out chats, or seeded random token ids."""
    common = {"model": "model", "temperature": 0, "max_tokens": options.max_tokens, "return_token_ids": True}
    if options.random_prompt_tokens is None:
        for prompt in held_out_prompts(options.prompts, 2026, max_long=1.0 if options.long else 0.1):
            yield "/v1/chat/completions", {"messages": prompt.messages, **common}
        return
    import random

    source = random.Random(2026)
    for _ in range(options.prompts):
        ids = [source.randrange(300, vocabulary) for _ in range(options.random_prompt_tokens)]
        yield "/v1/completions", {"prompt": ids, "ignore_eos": True, **common}


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
        "preemptions",
        "prefix hits",
        "tokens as first",
    )
    rows = ["| " + " | ".join(titles) + " |", "|" + "---|" * len(titles)]
    for variant, result in results:
        if "error" in result:
            rows.append(f"| {variant} | {result['error'][-200:]!r} |")
            continue
        report = result["report"]
        rows.append(
            f"| {variant} | {report['kv_tokens']:,} | {report['concurrency']:.2f} | {len(report['groups'])} | "
            f"{'yes' if not result['differences'] else result['differences']} | {result['output_tokens_per_second']} | "
            f"{result['mean_acceptance_length']} | {result['preemptions']} | {result['prefix_hits']:,} | "
            f"{result['outputs_as_first']} |"
        )
    return "\n".join(rows)


def main() -> int:
    """Exit status 1 if a variant did not start or did not get what was predicted."""
    return run("benchmarks.compare_plans", parser(), run_variant, partial(in_turn, "benchmarks.compare_plans"), table)


if __name__ == "__main__":
    sys.exit(main())
