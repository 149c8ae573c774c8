"""Stock vLLM and a planned KV cache under load on one device, in both orders: capacity, latency, throughput.

    python -m benchmarks.serve_plans --device cpu --kv-memory 256MiB --levels 1:4,8:16 --input-len 256 --output-len 32
    python -m benchmarks.serve_plans --target DIR --drafter DIR --device cuda --kv-memory 20GiB

Each variant is an engine in a process of its own behind vLLM's own OpenAI app on a loopback port. Every level of
concurrency is a `vllm bench serve` of prompts from a seed, the same for every variant, after one that warms up; then
some of the prompts are answered again, greedily and one at a time, and the token ids of the variants are compared.
"""

import argparse
import os
import sys
from asyncio.subprocess import Process
from functools import partial
from typing import Any

from benchmarks.engine_variants import VARIANTS, add_engine_options, counted, life_of
from benchmarks.in_turn import add_run_options, in_turn, run
from benchmarks.levels import Level, greedy, load_process, loaded
from benchmarks.served import served
from hybrid_serve.engine.base import EngineConfig
from hybrid_serve.engine.vllm_engine import VLLMEngine

WARM_UP_SEED = 1


def parser() -> argparse.ArgumentParser:
    """The command line."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_engine_options(options)
    options.add_argument("--order", default="stock,best,best,stock", help=f"variants in turn: {VARIANTS}")
    options.add_argument("--levels", default="1:4,8:16,32:64,128:128", help="CONCURRENCY:REQUESTS of each, in turn")
    options.add_argument("--input-len", type=int, default=1024, help="tokens of a prompt")
    options.add_argument("--output-len", type=int, default=128, help="tokens of an answer, exactly")
    options.add_argument("--shared-prefix-len", type=int, default=0, help="of a level's prompts")
    options.add_argument("--warm-up", default="4:4", help="the level that warms up, not recorded")
    options.add_argument("--greedy-prompts", type=int, default=8, help="prompts whose token ids are compared")
    options.add_argument("--greedy-prompt-len", type=int, default=512)
    options.add_argument("--seed", type=int, default=2026)
    add_run_options(options)
    return options


async def run_variant(options: argparse.Namespace) -> dict[str, Any]:
    """One engine's life; `error` instead of figures if it did not start."""

    async def measured(engine: VLLMEngine, config: EngineConfig) -> dict[str, Any]:
        async with served(engine) as url, load_process() as load:
            if options.warm_up:
                await one_level(load, engine, url, options, options.warm_up, WARM_UP_SEED)
            levels = [
                await one_level(load, engine, url, options, level, options.seed + number)
                for number, level in enumerate(options.levels.split(","))
                if level
            ]
            outputs = await greedy(
                url,
                prompts=options.greedy_prompts,
                prompt_len=options.greedy_prompt_len,
                output_len=options.output_len,
                vocabulary=config.target.vocab_size,
                seed=options.seed,
                timeout=options.timeout,
            )
            return {"levels": levels, "outputs": outputs}

    return await life_of(options, measured)


async def one_level(
    load: Process, engine: VLLMEngine, url: str, options: argparse.Namespace, level: str, seed: int
) -> dict[str, Any]:
    """CONCURRENCY:REQUESTS, and what the engine counted meanwhile."""
    concurrency, requests = map(int, level.split(":"))
    asked = Level(
        at_once=concurrency,
        requests=requests,
        input_len=options.input_len,
        output_len=options.output_len,
        shared_prefix_len=options.shared_prefix_len,
    )
    before = await engine.stats()
    figures = await loaded(load, asked, url, options.target, seed)
    return {"level": level, "load": figures, "engine": counted(before, await engine.stats(), digits=4)}


def table(results: list[tuple[str, dict[str, Any]]]) -> str:
    """One row a variant and level, in the order in which they ran."""
    titles = "variant | level | KV tokens | concurrency | groups | predicted = actual | output tok/s | TTFT p50 ms | "
    titles += "TPOT p50 ms | preemptions | acceptance | greedy ids as first"
    rows = [f"| {titles} |", "|" + "---|" * len(titles.split("|"))]
    for variant, result in results:
        if "error" in result:
            rows.append(f"| {variant} | {result['error'][-300:]!r} |")
            continue
        report = result["report"]
        predicted = "yes" if not result["differences"] else result["differences"]
        for level in result["levels"]:
            load, engine = level["load"], level["engine"]
            speeds = (
                f"{load['output_throughput']:.1f} | {load['median_ttft_ms']:.0f} | {load['median_tpot_ms']:.2f}"
                if "error" not in load
                else f"{load['error']} | | "
            )
            rows.append(
                f"| {variant} | {level['level']} | {report['kv_tokens']:,} | {report['concurrency']:.2f} | "
                f"{len(report['groups'])} | {predicted} | {speeds} | {engine['preemptions']} | "
                f"{engine['mean_acceptance_length']} | {result['outputs_as_first']} |"
            )
    return "\n".join(rows)


def main() -> int:
    """Exit status 1 if a variant did not start or did not get what was predicted."""
    return run("benchmarks.serve_plans", parser(), run_variant, partial(in_turn, "benchmarks.serve_plans"), table)


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    sys.exit(main())
