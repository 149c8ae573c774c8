"""What stock vLLM and the planner get out of the same KV memory, by context length and KV dtype: engines are started,
and asked what they got.

    python -m benchmarks.capacity --target DIR --drafter DIR --device cuda --kv-memory 20GiB

Each engine's `max_model_len` is the context, so that vLLM's own "Maximum concurrency" is that of requests of this
length. No request is sent; engines may start several at once, since nothing is timed.
"""

import argparse
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import Any

from benchmarks.engine_variants import add_engine_options, life_of
from benchmarks.in_turn import Results, add_run_options, in_own_process, run
from hybrid_serve.engine.base import EngineConfig
from hybrid_serve.engine.vllm_engine import VLLMEngine

VARIANTS = ("stock", "best")


def parser() -> argparse.ArgumentParser:
    """The command line."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_engine_options(options)
    options.add_argument("--contexts", default="2048,8192,32768,131072")
    options.add_argument("--dtypes", default="auto/auto,fp8/bf16", help="KV dtypes of target/drafter")
    options.add_argument("--at-once", type=int, default=1, help="engines that start at the same time")
    add_run_options(options)
    return options


async def run_variant(options: argparse.Namespace) -> dict[str, Any]:
    """What one engine got; `error` if it did not start."""

    async def nothing_more(_engine: VLLMEngine, _config: EngineConfig) -> dict[str, Any]:
        return {}

    return await life_of(options, nothing_more)


def table(results: list[tuple[str, dict[str, Any]]]) -> str:
    """One row a context and dtype pair; errors below."""
    rows = [
        "| context | KV dtypes | stock: KV tokens, groups | plan: KV tokens, groups | concurrency, stock | "
        "concurrency, plan | ratio | predicted = actual |",
        "|" + "---|" * 8,
    ]
    by_name = dict(results)
    for cell in dict.fromkeys(name.rpartition(" ")[0] for name in by_name):
        found = [by_name[f"{cell} {variant}"] for variant in VARIANTS]
        context, dtypes = cell.split(" ")
        if broken := [result["error"][-200:] for result in found if "error" in result]:
            rows.append(f"| {int(context):,} | {dtypes} | {broken!r} |")
            continue
        stock, best = (result["report"] for result in found)
        wrong = [difference for result in found for difference in result["differences"]]
        rows.append(
            f"| {int(context):,} | {dtypes} | {stock['kv_tokens']:,}, {len(stock['groups'])} | {best['kv_tokens']:,}, "
            f"{len(best['groups'])} | {stock['concurrency']:.2f} | {best['concurrency']:.2f} | "
            f"{best['concurrency'] / stock['concurrency']:.2f} | {wrong or 'yes'} |"
        )
    return "\n".join(rows)


def run_all(options: argparse.Namespace, arguments: list[str]) -> Iterator[Results]:
    """All cells, `--at-once` at a time; one list of results, in the cells' order."""

    def one(cell: tuple[str, str, str]) -> tuple[str, dict[str, Any]]:
        context, dtypes, variant = cell
        kv, _, draft = dtypes.partition("/")
        own = [*arguments, "--max-model-len", context, "--kv-dtype", kv, "--draft-kv-dtype", draft]
        return f"{context} {dtypes} {variant}", in_own_process("benchmarks.capacity", variant, options, own)

    cells = product(options.contexts.split(","), options.dtypes.split(","), VARIANTS)
    with ThreadPoolExecutor(options.at_once) as pool:
        yield list(pool.map(one, cells))


def main() -> int:
    """Exit status 1 if a variant did not start or did not get what was predicted."""
    return run("benchmarks.capacity", parser(), run_variant, run_all, table)


if __name__ == "__main__":
    sys.exit(main())
