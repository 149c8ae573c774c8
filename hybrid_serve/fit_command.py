"""`hybrid-serve fit`: on which GPUs, and on how many, a target and its drafter fit. Imports neither torch nor vllm."""

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from hybrid_serve import plan_options
from hybrid_serve.facts.catalogue import GPUS, gpu
from hybrid_serve.facts.errors import FactsError
from hybrid_serve.facts.memory import kv_memory_bytes
from hybrid_serve.plan.decide import Decision, decide
from hybrid_serve.plan.inputs import PlanInputs
from hybrid_serve.plan.verdict import Impossible, Verdict
from hybrid_serve.plan.workload import mean_concurrency
from hybrid_serve.plan_options import Pair
from hybrid_serve.plan_table import workload_words
from hybrid_serve.sizes import format_size

TENSOR_PARALLEL_SIZES = (1, 2, 4, 8)


@dataclass(frozen=True, kw_only=True)
class Side:
    """What one policy gives; without figures if it does not start. `note` says why not, or what it takes."""

    starts: bool
    kv_tokens: int | None = None
    concurrency: float | None = None
    groups: int | None = None
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class FitRow:
    """One GPU kind and tensor parallel size; `kv_memory_bytes` is of one GPU, None if weights leave nothing."""

    gpu: str
    tensor_parallel_size: int
    fits: bool
    kv_memory_bytes: int | None
    stock: Side
    best: Side


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the subcommand."""
    command = commands.add_parser("fit", help="which GPUs, and how many, it fits on", description=__doc__)
    plan_options.add_pair(command)
    plan_options.add_engine(command)
    plan_options.add_workload(command)
    command.add_argument("--json", action="store_true", help="JSON instead of a table")
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print one row a GPU kind and tensor parallel size. Exit status 1 if it fits nowhere."""
    pair = plan_options.read_pair(arguments, "cuda")
    # Wrong settings are told once, before any row: they do not depend on the GPU.
    any_gpu = gpu(next(iter(GPUS)))
    asked = plan_options.inputs_of(arguments, pair, any_gpu, tensor_parallel_size=1, memory=any_gpu.memory_bytes)
    rows = tuple(fit_rows(arguments, pair))
    print(json.dumps(to_json(rows, pair), indent=2) if arguments.json else table(rows, pair, asked))
    return 0 if any(row.fits for row in rows) else 1


def fit_rows(arguments: argparse.Namespace, pair: Pair) -> Iterator[FitRow]:
    """All of the catalogue."""
    for name in GPUS:
        device = gpu(name)
        for size in TENSOR_PARALLEL_SIZES:
            try:
                memory = kv_memory_bytes(device, pair.weights_bytes, size)
            except FactsError as error:
                none = Side(starts=False, note=error.problems[0].reason)
                yield FitRow(
                    gpu=name, tensor_parallel_size=size, fits=False, kv_memory_bytes=None, stock=none, best=none
                )
                continue
            inputs = plan_options.inputs_of(arguments, pair, device, tensor_parallel_size=size, memory=memory)
            yield _row(name, inputs, decide(inputs))


def _row(name: str, inputs: PlanInputs, decision: Decision) -> FitRow:
    best = _side(decision.chosen, inputs)
    return FitRow(
        gpu=name,
        tensor_parallel_size=inputs.settings.tensor_parallel_size,
        fits=best.starts,
        kv_memory_bytes=inputs.kv_memory_bytes,
        stock=_side(decision.stock, inputs),
        best=best,
    )


def _side(verdict: Verdict, inputs: PlanInputs) -> Side:
    if isinstance(verdict, Impossible):
        return Side(starts=False, note=f"{verdict.reason}; {verdict.remedy}")
    plan = verdict.plan
    return Side(
        starts=True,
        kv_tokens=plan.kv_tokens,
        concurrency=round(mean_concurrency(plan, inputs), 2),
        groups=len(plan.groups),
    )


def weights_words(pair: Pair) -> str:
    """What is known of the weights."""
    if pair.without_weights:
        missing = " and ".join(f"the {name}" for name in pair.without_weights)
        counted = f"; the rest ({format_size(pair.weights_bytes)}) is" if pair.weights_bytes else ""
        return f"the weights of {missing} are NOT COUNTED: there is only a config{counted}. Less fits than shown"
    return f"weights: {format_size(pair.weights_bytes)} ({pair.weights_bytes:,} bytes), split over the GPUs"


def to_json(rows: tuple[FitRow, ...], pair: Pair) -> dict[str, Any]:
    """The answer for machines."""
    return {
        "weights_bytes": pair.weights_bytes,
        "weights_not_counted": list(pair.without_weights),
        "rows": [asdict(row) for row in rows],
    }


def table(rows: tuple[FitRow, ...], pair: Pair, asked: PlanInputs) -> str:
    """The answer for people; what keeps a row from fitting is told below the table, once."""
    settings = asked.settings
    lines = [
        f"vLLM {asked.capabilities.version}, K = {settings.num_speculative_tokens}, max_model_len "
        f"{settings.max_model_len:,}; {weights_words(pair)}",
        f"requests at once: of {workload_words(asked)}. KV memory is an estimate, of one GPU",
        "",
        f"{'':14}{'':>4}{'':>11}{'':>6}" + "".join(f"{name:>32}" for name in ("stock", "best")),
        f"{'GPU':14}{'TP':>4}{'KV memory':>11}{'fits':>6}" + f"{'KV tokens':>14}{'requests':>10}{'groups':>8}" * 2,
    ]
    notes: dict[str, int] = {}
    for row in rows:
        memory = "none" if row.kv_memory_bytes is None else format_size(row.kv_memory_bytes)
        cells = f"{row.gpu:14}{row.tensor_parallel_size:>4}{memory:>11}{'yes' if row.fits else 'no':>6}"
        cells += _cells(row.stock) + _cells(row.best)
        shown = [notes.setdefault(side.note, len(notes) + 1) for side in (row.stock, row.best) if side.note]
        lines.append(cells + "".join(f"  [{number}]" for number in dict.fromkeys(shown)))
    return "\n".join([*lines, "", *(f"[{number}] {note}" for note, number in notes.items())]).rstrip()


def _cells(side: Side) -> str:
    if not side.starts:
        return f"{'does not start':>24}{'':>8}"
    return f"{side.kv_tokens:>14,}{side.concurrency:>10.2f}{side.groups:>8}"
