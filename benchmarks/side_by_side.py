"""Stock vLLM and planned KV caches side by side on one device: engines that stand there together get the same load, one
at a time and in both orders.

    python -m benchmarks.side_by_side benchmarks/suites/cpu.json
    python -m benchmarks.side_by_side benchmarks/suites/h200.json --target DIR --drafter DIR --device cuda

A suite is a list of stages. The engines of a stage start at once, and have all started before the first request is
sent; they end before the next stage begins. An engine that gets no load does nothing. So no start and no other
engine's work falls into what is timed, and what is compared shares a GPU, its temperature and its neighbours.

Each case of a stage names its variants and levels. Every engine is warmed up by the first level, which isn't kept. Then
the variants get all levels in the order given, and in the reverse order with other prompts; in each of the two rounds
all variants have the same prompts. At last some greedy answers are compared.
"""

import argparse
import asyncio
import json
import math
import os
import sys
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx

from benchmarks.engine_variants import VARIANTS, add_engine_options, counted, started
from benchmarks.in_turn import ANSWER, add_run_options, compare_outputs, kept
from benchmarks.levels import Level, greedy, load_process, loaded
from benchmarks.served import served
from benchmarks.standing import Sample, StandingEngine, saturated, standing
from hybrid_serve.engine.base import EngineStartError

MODULE = "benchmarks.side_by_side"
GREEDY_PROMPT_LEN = 512
GREEDY_OUTPUT_LEN = 64
SAMPLE_S = 0.5


@dataclass(frozen=True, kw_only=True)
class Case:
    """What is compared with what, and under which load.

    Attributes:
        variants: as `engine_variants.VARIANTS` says, stock first.
        arguments: of this module's command line, for this case's engines: the suite's and its own.
        engine_args: vLLM's, the suite's and its own.
        levels: in turn; the first warms up and is not kept.
        greedy_prompts: so many answers are compared by their token ids.
    """

    name: str
    variants: tuple[str, ...]
    levels: tuple[Level, ...]
    arguments: tuple[str, ...] = ()
    engine_args: dict[str, Any] = field(default_factory=dict)
    greedy_prompts: int = 4

    def command_line(self, variant: str, given: list[str]) -> list[str]:
        """This module's for one of the case's engines; what is given wins over what the suite says."""
        engine_args = self.engine_args | parser().parse_args(given).engine_args
        return [*self.arguments, *given, f"--engine-args={json.dumps(engine_args)}", f"--variant={variant}"]


Stage = list[Case]


def read_suite(path: Path) -> list[Stage]:
    """A suite's file: {"arguments": [of all cases], "engine_args": {of all}, "stages": [[case, ...], ...]}."""
    content = json.loads(path.read_text())
    return [
        [
            Case(
                **case
                | {
                    "variants": tuple(case["variants"]),
                    "levels": tuple(Level(**level) for level in case["levels"]),
                    "arguments": (*content["arguments"], *case.get("arguments", ())),
                    "engine_args": content["engine_args"] | case.get("engine_args", {}),
                }
            )
            for case in stage
        ]
        for stage in content["stages"]
    ]


def parser() -> argparse.ArgumentParser:
    """The command line."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("suite", type=Path, help=f"a JSON file; its variants: {VARIANTS}")
    options.add_argument("--seed", type=int, default=2026)
    options.add_argument("--case", action="append", help="only this case of the suite; may be given several times")
    add_engine_options(options)
    add_run_options(options)
    return options


async def one_engine(options: argparse.Namespace) -> int:
    """The process of one engine: says what it started with, then answers a line with its stats until its input ends."""
    try:
        async with started(options) as (engine, config, figures), served(engine) as url:
            where = {"url": url, "vocabulary": config.target.vocab_size}
            answer(where | figures)
            while await asyncio.to_thread(sys.stdin.readline):
                answer(asdict(await engine.stats()))
    except EngineStartError as error:
        answer({"error": str(error)})
        return 1
    return 0


def answer(content: dict[str, Any]) -> None:
    """A line of its own, also after a progress bar, which ends none."""
    print(f"\n{ANSWER}{json.dumps(content)}", flush=True)


class Suite:
    """A run of a suite, and its record so far.

    Attributes:
        cases: of each case that was begun: its engines' plans and reports, the levels' figures, the greedy answers.
    """

    def __init__(self, options: argparse.Namespace, arguments: list[str]) -> None:
        self._options, self._arguments = options, arguments
        self.cases: list[dict[str, Any]] = []

    async def run(self) -> bool:
        """All stages in turn; a case whose engines don't all start is recorded as failed, and the others go on.

        Returns:
            Every engine started, got what was predicted, and answered every request.
        """
        stages = read_suite(self._options.suite)
        known = [case.name for stage in stages for case in stage]
        if unknown := sorted(set(self._options.case or ()) - set(known)):
            raise SystemExit(f"the suite has no case {', '.join(unknown)}; it has {', '.join(known)}")
        for stage in stages:
            if chosen := [case for case in stage if case.name in (self._options.case or known)]:
                await self._stage(chosen)
        differ = any(engine.get("differences") for case in self.cases for engine in case["engines"])
        return not differ and not any("error" in case for case in self.cases)

    async def _stage(self, stage: Stage) -> None:
        engines = {
            (case.name, variant): case.command_line(variant, self._arguments)
            for case in stage
            for variant in case.variants
        }
        async with standing(MODULE, engines, self._options.timeout, self._options.logs) as all_standing:
            for case in stage:
                record: dict[str, Any] = {"case": case.name, "engines": [], "runs": [], "greedy": []}
                self.cases.append(record)
                try:
                    mine = {variant: all_standing[case.name, variant] for variant in case.variants}
                    record["engines"] = [{"variant": v, **engine.figures} for v, engine in mine.items()]
                    if failed := [f"{variant}: {engine.failed}" for variant, engine in mine.items() if engine.failed]:
                        raise EngineStartError("; ".join(failed))
                    async with load_process() as load:
                        await self._case(case, mine, load, record)
                except (EngineStartError, RuntimeError, TimeoutError, OSError, httpx.HTTPError) as error:
                    record["error"] = str(error) or repr(error)
                self._keep()

    async def _case(
        self, case: Case, engines: dict[str, StandingEngine], load: asyncio.subprocess.Process, record: dict[str, Any]
    ) -> None:
        async for figures in self._levels(case, engines, load):
            record["runs"].append(figures)
            self._keep()
        record["greedy"] = await self._greedily(case, engines)
        self._keep()

    async def _levels(
        self, case: Case, engines: dict[str, StandingEngine], load: asyncio.subprocess.Process
    ) -> AsyncIterator[dict[str, Any]]:
        warm_up, *levels = case.levels
        for engine in engines.values():
            await self._level(engine, warm_up, load, self._options.seed)
        for number, turn in enumerate((list(engines), list(engines)[::-1]), start=1):
            for variant in turn:
                for place, level in enumerate(levels):
                    seed = self._options.seed + 1000 * number + place
                    figures = await self._level(engines[variant], level, load, seed)
                    yield {"variant": variant, "round": number, "place": place, **figures}

    async def _level(
        self, engine: StandingEngine, level: Level, load: asyncio.subprocess.Process, seed: int
    ) -> dict[str, Any]:
        before, since = await engine.stats(), _now()
        samples: list[Sample] = []
        async with engine.sampled(SAMPLE_S, samples):
            sent = loaded(load, level, engine.url, self._options.target, seed)
            figures = await asyncio.wait_for(sent, self._options.timeout)
        if "error" in figures or figures["failed"]:
            raise RuntimeError(f"{level}: {figures.get('error') or figures['failed']} of {level.requests} failed")
        until, after = _now(), await engine.stats()
        return {
            "level": asdict(level),
            "seed": seed,
            "from": since,
            "to": until,
            "load": figures,
            "engine": counted(before, after, digits=4),
            "saturated": saturated(samples),
            "samples": samples,
        }

    async def _greedily(self, case: Case, engines: dict[str, StandingEngine]) -> list[dict[str, Any]]:
        """Each engine's answers compared with the first's."""
        results: list[tuple[str, dict[str, Any]]] = []
        for variant, engine in engines.items():
            outputs = await greedy(
                engine.url,
                prompts=case.greedy_prompts,
                prompt_len=GREEDY_PROMPT_LEN,
                output_len=GREEDY_OUTPUT_LEN,
                vocabulary=engine.vocabulary,
                seed=self._options.seed,
                timeout=self._options.timeout,
            )
            results.append((variant, {"outputs": outputs}))
        compare_outputs(results)
        return [
            {"variant": variant} | {name: x for name, x in result.items() if name != "outputs"}
            for variant, result in results
        ]

    def _keep(self) -> None:
        if self._options.output:
            content = {"table": table(self.cases).splitlines(), "cases": self.cases}
            kept(MODULE, self._options.output, self._arguments, content)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def table(cases: list[dict[str, Any]]) -> str:
    """One row a case, level, round and variant, in the order in which they ran."""
    titles = "case | round | at once: requests, in + out | variant | groups | predicted = actual | output tok/s | "
    titles += "saturated | TTFT p50 ms | TPOT p50 ms | preemptions | prefix hits | acceptance | greedy ids as first"
    rows = [f"| {titles} |", "|" + "---|" * len(titles.split("|"))]
    for case in cases:
        engines = {engine["variant"]: engine for engine in case["engines"]}
        same = {row["variant"]: row["outputs_as_first"] for row in case["greedy"]}
        for run in case["runs"]:
            level, load, did, engine = run["level"], run["load"], run["engine"], engines[run["variant"]]
            figures = [load.get(name, math.nan) for name in ("output_throughput", "median_ttft_ms", "median_tpot_ms")]
            figures.insert(1, (run["saturated"] or {}).get("output_throughput", math.nan))
            speeds = (
                load.get("error")
                or " | ".join("-" if math.isnan(figure) else f"{figure:.1f}" for figure in figures[:3])
                + f" | {figures[3]:.2f}"
            )
            rows.append(
                f"| {case['case']} | {run['round']} | {level['at_once']}: {level['requests']}, {level['input_len']} + "
                f"{level['output_len']} | {run['variant']} | {len(engine['report']['groups'])} | "
                f"{engine['differences'] or 'yes'} | {speeds} | {did['preemptions']} | {did['prefix_hits']} | "
                f"{did['mean_acceptance_length']} | {same.get(run['variant'], '')} |"
            )
        if "error" in case:
            rows.append(f"| {case['case']} | {case['error'][-300:]!r} |")
    return "\n".join(rows)


def main() -> int:
    """Exit status 1 if an engine did not start or did not get what was predicted."""
    arguments = sys.argv[1:]
    options = parser().parse_args(arguments)
    if options.variant:
        return asyncio.run(one_engine(options))
    run = Suite(options, arguments)
    fine = asyncio.run(run.run())
    print(table(run.cases))
    return 0 if fine else 1


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    sys.exit(main())
