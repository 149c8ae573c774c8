"""Writes `docs/benchmarks.md` from `benchmarks/results/`: python -m benchmarks.report"""

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks/results"
PAGE = ROOT / "docs/benchmarks.md"

INTRODUCTION = """# Benchmarks

Written by `python -m benchmarks.report` from the raw results in `benchmarks/results/`, each of which has its command,
versions and date. On one NVIDIA H200 unless said otherwise. *Seed geometry*: the KV geometry of Qwen3.5-35B-A3B and its
DFlash drafter (30 GDN and 10 full attention layers; 5 sliding and 1 full), K = 8, with 8 experts instead of 256 and
random weights, written by `python -m benchmarks.seed_geometry DIR`. Steps are therefore shorter than the whole model's,
and no draft is accepted: what is compared is stock vLLM and a KV plan on the same weights, not vLLM's speed.
"""

NOT_MEASURED = """## Not measured

- Throughput under saturating load without a server that lags behind, and stock's second run of it (above).
- The plan of the default (`prefer: capacity`) under load: it holds 2.3 % more in 9 groups instead of 5.
- fp8 KV, prefix caching on, contexts other than 8,192 and eager mode under load. (Their capacities, and the
  correctness of fp8, prefix caching and eager mode on trained weights, are above. `benchmarks/suites/h200.json` has
  fp8 and eager mode.)
- What blocks of whole tiles of the attention kernel save by themselves (`gathered` in the suite's eager case).
- The whole model: weights of 35 billion parameters, and acceptance of its own drafter.
- Tensor parallelism of a plan on a GPU: stock's two ranks ran on one H200 (`benchmarks/results/two-ranks-h200.json`,
  `benchmarks/shared_gpu.py`), the plan's run was cut off. On the CPU engine two workers run a plan, with uniform pages
  (`tests/contract/test_real_engine.py`).
- Any other GPU than the H200.
- vLLM 0.26.0 and 0.33.0 on a GPU; 0.20.1 beyond the command above (its two faults on trained weights are measured by
  doing the same to vLLM 0.29.0 on the CPU engine).
"""


def result(name: str) -> dict[str, Any]:
    """One raw result."""
    loaded: dict[str, Any] = json.loads((RESULTS / name).read_text())
    return loaded


def header(title: str, name: str, record: dict[str, Any]) -> Iterator[str]:
    """A section's title and where its figures are from."""
    dates = record.get("date", record.get("cases", [{}])[0].get("date"))
    date = dates[0] if isinstance(dates, list) else dates
    yield f"## {title}\n"
    yield f"`benchmarks/results/{name}`, vLLM {record['versions']['vllm']}, {date[:10]}:\n"
    for command in record.get("commands", [record.get("command")]):
        yield f"    {command}".rstrip()
    yield ""


def side_by_side() -> Iterator[str]:
    """Latency and throughput of two engines that stood on the GPU together, in both orders."""
    record = result("side-by-side-h200.json")
    yield from header("Side by side: 20 GiB of KV cache, CUDA graphs", "side-by-side-h200.json", record)
    case = record["cases"][0]
    engines = {engine["variant"]: engine["report"] for engine in case["engines"]}
    yield (
        f"{capacity_of('Stock', engines['stock'])} {capacity_of('Plan', engines['fast'])} It is the one that `prefer: "
        "speed` gives (`fast` in the benchmark). Predicted = actual for both. Round 1 is stock first, round 2 the plan "
        "first; within a round both had the same prompts.\n"
    )
    yield (
        "| requests, at most at once: in + out | round | output tokens/s: stock, plan | ratio | time per output token, "
        "p50, ms | ratio | TTFT p50, ms | ratio |"
    )
    yield "|" + "---|" * 8
    runs = {(run["place"], run["round"], run["variant"]): run for run in case["runs"]}
    for place, number in sorted({(place, number) for place, number, _ in runs}):
        level = runs[place, number, "fast"]["level"]
        spread = f" (+-{level['output_spread']:.0%})" if level["output_spread"] else ""
        cells = [
            pair(runs, place, number, name, form)
            for name, form in (("output_throughput", ".1f"), ("median_tpot_ms", ".2f"), ("median_ttft_ms", ".0f"))
        ]
        yield (
            f"| {level['requests']}, {min(level['at_once'], level['requests'])}: {level['input_len']:,} + "
            f"{level['output_len']}{spread} | {number} | {' | '.join(cells)} |"
        )
    last = max(place for place, _, _ in runs)
    deviations = {
        variant: " and ".join(f"{runs[1, number, variant]['load']['std_itl_ms']:.1f}" for number in (1, 2))
        for variant in ("stock", "fast")
    }
    alone = result("serve-8192-h200.json")["results"]
    (calm,) = (entry["levels"][0]["load"]["std_itl_ms"] for entry in alone if entry["variant"] == "stock")
    yield (
        f"\n{record['note']}\n\nWith one request stock varied much, between its two runs and between its tokens "
        f"(standard deviation {deviations['stock']} ms; the plan's {deviations['fast']}). Alone on a GPU, see below, "
        f"it was {calm:.1f} ms.\n"
    )
    merged = {name: pieces(runs[last, 1, name]) for name in ("stock", "fast")}
    until = max(run["to"] for run in runs.values())[11:19]
    logged = {
        name: waiting_rates([line for line in lines if line["at"] <= until])
        for name, lines in record["engine_log"].items()
    }
    yield (
        "At the last level the server lagged behind its engine, and more behind the faster one: "
        f"{merged['fast']} tokens of the plan came in one piece, {merged['stock']} of stock. "
        "So what the client saw there is no measure of the engines, and most likely too little for the plan. "
        f"vLLM's own log, which comes by way of the same server, has {logged['stock']} tokens/s for stock "
        f"and {logged['fast']} for the plan while requests waited at both ends of an interval. "
        "A cause may be the tokenizer: for an id without text vLLM's detokenizer decodes the whole prompt again at "
        "each token, which `benchmarks/seed_geometry.py` avoids now. That was not measured any more.\n"
    )


def capacity_of(name: str, report: dict[str, Any]) -> str:
    """A sentence on what an engine holds."""
    return (
        f"{name}: {report['kv_tokens']:,} KV tokens, {report['concurrency']:.2f} requests of 8,192 tokens, "
        f"{len(report['groups'])} groups."
    )


def pair(runs: dict[tuple[int, int, str], Any], place: int, number: int, name: str, form: str) -> str:
    """Two cells: both variants' figures and their ratio, as far as they are there and mean something."""
    stock, plan = (runs.get((place, number, variant), {}).get("load", {}) for variant in ("stock", "fast"))
    if stock.get(name) and plan.get(name):
        return compared(stock, plan, name, form)
    return ", ".join(f"{load[name]:{form}}" if load.get(name) else "-" for load in (stock, plan)) + " | -"


def waiting_rates(lines: list[dict[str, Any]]) -> str:
    """The least and the most that an engine generated between two lines of its log at which requests waited."""
    rates = [line["generation_throughput"] for before, line in pairwise(lines) if before["waiting"] and line["waiting"]]
    return f"{min(rates):.0f} to {max(rates):.0f} ({len(rates)} intervals)"


def load() -> Iterator[str]:
    """Latency and throughput by level of two engines, one after the other, and what a group costs."""
    record = result("serve-8192-h200.json")
    yield from header(
        "One after the other: 7,664 tokens in, 512 out, 20 GiB of KV cache, CUDA graphs", "serve-8192-h200.json", record
    )
    by_name = {entry["variant"].partition("@")[0]: entry for entry in record["results"]}
    stock, plan = by_name["stock"], by_name["best"]
    reports = stock["report"], plan["report"]
    yield (
        f"{capacity_of('Stock', reports[0])} {capacity_of('Plan', reports[1])} It was what `prefer: speed` gave before "
        "blocks were made of whole tiles of the attention kernel. Predicted = actual for both. The tokenizer lacked "
        "most ids here, too.\n"
    )
    yield (
        "| requests, at most at once | output tokens/s: stock, plan | ratio | time per output token, p50, ms | ratio | "
        "TTFT p50, ms |"
    )
    yield "|---|---|---|---|---|---|"
    for theirs, ours in zip(stock["levels"], plan["levels"], strict=True):
        a, b = theirs["load"], ours["load"]
        at_once, _, requests = theirs["level"].partition(":")
        yield (
            f"| {requests}, {min(int(at_once), int(requests))} | {compared(a, b, 'output_throughput', '.0f')} | "
            f"{compared(a, b, 'median_tpot_ms', '.2f')} | {a['median_ttft_ms']:.0f}, {b['median_ttft_ms']:.0f} |"
        )
    yield (
        f"\n{record['note']} The server lagged behind the plan's engine with 8 and 40 requests, and behind stock's "
        f"with 40: {', '.join(map(pieces, plan['levels']))} tokens of the plan came in one piece at the three levels, "
        f"{', '.join(map(pieces, stock['levels']))} of stock. So the plan's figures of the last two, and stock's of "
        "the last, are those of the server.\n"
    )
    more = len(reports[0]["groups"]) - len(reports[1]["groups"])
    costs = [
        (theirs["load"]["median_tpot_ms"] - ours["load"]["median_tpot_ms"]) / more
        for theirs, ours in zip(stock["levels"][:2], plan["levels"][:2], strict=True)
    ]
    yield (
        f"The difference of the times per output token over that of the groups is {costs[0]:.2f} ms a group with one "
        f"request and {costs[1]:.2f} ms with eight, where the server's lag is in it. It has in it whatever else "
        "differs between the two engines, too (packed blocks instead of uniform pages, block sizes), and with eight "
        "the others' prompts. `GROUP_COST` in `hybrid_serve/plan/search.py` says what the planner makes of it.\n"
    )


def pieces(level: dict[str, Any]) -> str:
    """Tokens in a piece that the client got."""
    return f"{level['load']['mean_itl_ms'] / level['load']['mean_tpot_ms']:.1f}"


def compared(stock: dict[str, Any], plan: dict[str, Any], name: str, form: str) -> str:
    """Two cells: both figures, and the plan's over stock's."""
    return f"{stock[name]:{form}}, {plan[name]:{form}} | {plan[name] / stock[name]:.2f}"


def capacity() -> Iterator[str]:
    """Concurrency by context and dtype."""
    record = result("capacity-h200.json")
    yield from header("Capacity: fp8 target, bf16 drafter, 10 GiB of KV cache", "capacity-h200.json", record)
    yield from record["table"]
    earlier = result("seed-geometry-h200.json")
    yield f"\nbf16, 20 GiB, 131,072 tokens (`seed-geometry-h200.json`, {earlier['date'][:10]}, then 7 groups):\n"
    yield from earlier["table"][:3]
    yield ""


def seed_command() -> Iterator[str]:
    """vLLM 0.20.1."""
    record = result("seed-command-h200.json")
    yield from header("The command of the original report", "seed-command-h200.json", record)
    yield from record["table"]
    logged = next(entry["kv_cache"] for entry in record["results"] if entry["serves"])
    yield f"\nWhat the served one logged: {logged['plan']}. {logged['hidden_states']}. {logged['sliding']}.\n"


def packed() -> Iterator[str]:
    """What vLLM does with blocks, on trained weights."""
    record = result("gpu-tests-h200.json")
    name = "gpu-tests-h200.json"
    yield from header("Plans on trained weights: the demo target, stock and planned", name, record)
    yield f"{record['outcome']}. {record['note']}\n"
    yield "Sliding drafter: two layers with a window of 256, prompts of 900 to 1,300 tokens.\n"
    yield (
        "| case | plan's pages | KV tokens: stock, plan | mean acceptance length | "
        "largest difference at a position | answers equal | preemptions | prefix hits |"
    )
    yield "|---|---|---|---|---|---|---|---|"
    for case in record["cases"]:
        stock, plan = case["results"]
        pairs = zip(stock["acceptance_per_position"], plan["acceptance_per_position"], strict=True)
        yield (
            f"| {case['case']} | {plan['plan']['pages']} | "
            f"{stock['report']['kv_tokens']:,}, {plan['report']['kv_tokens']:,} | "
            f"{stock['mean_acceptance_length']}, {plan['mean_acceptance_length']} | "
            f"{max(abs(a - b) for a, b in pairs):.3f} | {plan['outputs_as_first']} | "
            f"{stock['preemptions']}, {plan['preemptions']} | {stock['prefix_hits']:,}, {plan['prefix_hits']:,} |"
        )
    yield "\nWhy stock finds so few prefixes here was not looked into.\n"


def faults() -> Iterator[str]:
    """What vLLM 0.20.1's two faults cost in acceptance."""
    record = result("faults-cpu.json")
    yield from header("What 0.20.1's two faults cost in acceptance, on the CPU engine", "faults-cpu.json", record)
    yield from record["table"]
    case = next(c for c in result("gpu-tests-h200.json")["cases"] if "window" in c["case"])
    yield (
        "\nAs it was trained the sliding drafter runs on CUDA only: "
        f"{case['results'][0]['mean_acceptance_length']} on an H200 for the same prompts (stock, see above), other "
        "kernels than here.\n"
    )


def page() -> str:
    """The whole page."""
    sections = [side_by_side(), load(), capacity(), seed_command(), packed(), faults()]
    return "\n".join([INTRODUCTION, *(line for section in sections for line in section), NOT_MEASURED])


if __name__ == "__main__":
    PAGE.write_text(page())
