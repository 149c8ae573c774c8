"""Engines in processes of their own that stand at the same time, and are asked what they count."""

import asyncio
import json
import os
import signal
import statistics
import sys
import time
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.in_turn import ANSWER, ROOT
from hybrid_serve.engine.base import EngineStartError, EngineStats

END_S = 60
"""What an engine's process may take to end by itself."""

STATS_S = 120
"""What an engine may take to say what it counts: under load its event loop can be far behind."""

Name = tuple[str, str]
"""Of an engine: its case's, and its variant's."""


class Sample(NamedTuple):
    """What an engine counted so many seconds after the first of a series."""

    seconds: float
    running: int
    waiting: int
    finished: int
    generated: int


def saturated(samples: list[Sample]) -> dict[str, float] | None:
    """What the engine generated while requests waited and came and went; None if there was no such time.

    From when as many requests have ended as run at once, so that they no longer all began together, until no request
    waits any more. What runs at once is the median, since an engine says only after its first step who waits.
    """
    full = [sample for sample in samples if sample.waiting]
    if not full:
        return None
    at_once = statistics.median(sample.running for sample in full)
    within = [sample for sample in full if sample.finished - samples[0].finished >= at_once]
    if len(within) < 2:
        return None
    seconds = within[-1].seconds - within[0].seconds
    return {
        "seconds": round(seconds, 2),
        "running": round(statistics.mean(sample.running for sample in within), 2),
        "finished": within[-1].finished - within[0].finished,
        "output_throughput": round((within[-1].generated - within[0].generated) / seconds, 2),
    }


class StandingEngine:
    """One engine's process.

    Attributes:
        url: where its OpenAI app listens, once it has started.
        vocabulary: token ids are below this.
        figures: its plan, what it reports, and the differences between the two.
        failed: why it did not start.
    """

    def __init__(self, process: Process, log: Path | None) -> None:
        self._process = process
        self._answers: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self._last_words: list[str] = []
        self._log = log
        self._reading = asyncio.ensure_future(self._read())
        self.url, self.vocabulary = "", 0
        self.figures: dict[str, Any] = {}
        self.failed: EngineStartError | None = None
        self._asking = asyncio.Lock()

    async def _read(self) -> None:
        """Takes the process's answers apart from its log; None once it has ended."""
        assert self._process.stdout is not None
        with self._log.open("w", buffering=1) if self._log else nullcontext() as log:
            async for raw in self._process.stdout:
                line = raw.decode(errors="replace")
                if line.startswith(ANSWER):
                    self._answers.put_nowait(json.loads(line.removeprefix(ANSWER)))
                    continue
                self._last_words = [*self._last_words[-30:], line]
                if log:
                    log.write(line)
        self._answers.put_nowait(None)

    async def _answer(self, timeout: float) -> dict[str, Any]:
        try:
            answer = await asyncio.wait_for(self._answers.get(), timeout)
        except TimeoutError:
            raise EngineStartError(f"no answer within {timeout:g} s") from None
        if answer is None:
            raise EngineStartError("the engine's process ended: " + "".join(self._last_words)[-1500:])
        return answer

    async def start(self, timeout: float) -> None:
        """Waits until it serves, or has failed to."""
        try:
            answer = await self._answer(timeout)
            if "error" in answer:
                raise EngineStartError(answer["error"])
        except EngineStartError as error:
            self.failed = error
        else:
            self.url, self.vocabulary = answer.pop("url"), answer.pop("vocabulary")
            self.figures = answer

    async def stats(self) -> EngineStats:
        """Live figures.

        Raises:
            EngineStartError: the process has ended, or does not answer any more.
        """
        assert self._process.stdin is not None
        async with self._asking:
            self._process.stdin.write(b"stats\n")
            await self._process.stdin.drain()
            answer = await self._answer(STATS_S)
        answer["accepted_per_position"] = tuple(answer["accepted_per_position"])
        return EngineStats(**answer)

    @asynccontextmanager
    async def sampled(self, every_s: float, samples: list[Sample]) -> AsyncIterator[None]:
        """Adds to `samples` in the meantime."""
        done = asyncio.Event()
        sampling = asyncio.ensure_future(self._sample(every_s, samples, done))
        try:
            yield
        finally:
            done.set()
            await sampling

    async def _sample(self, every_s: float, samples: list[Sample], done: asyncio.Event) -> None:
        since = time.monotonic()
        while not done.is_set():
            stats = await self.stats()
            seconds = round(time.monotonic() - since, 3)
            finished, generated = stats.finished_requests, stats.generation_tokens
            samples.append(Sample(seconds, stats.running, stats.waiting, finished, generated))
            with suppress(TimeoutError):
                await asyncio.wait_for(done.wait(), every_s)

    async def exited(self) -> None:
        """Until the process has. (asyncio's `wait` goes on for as long as a child of it holds the output.)"""
        while self._process.returncode is None:
            await asyncio.sleep(0.05)

    async def end(self) -> None:
        """Ends the process and all that it started; kills what has not ended by itself in time."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        if self.url:
            with suppress(TimeoutError):
                await asyncio.wait_for(self.exited(), END_S)
        with suppress(ProcessLookupError):  # nothing is left of its session
            os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()
        await self._reading


@asynccontextmanager
async def standing(
    module: str, command_lines: Mapping[Name, list[str]], timeout: float, logs: Path | None
) -> AsyncIterator[dict[Name, StandingEngine]]:
    """An engine for each command line of `module`; all have started, or failed to within `timeout` seconds.

    None is left at the end.
    """
    environment = os.environ | {"VLLM_LOGGING_LEVEL": "INFO"}
    if logs:
        logs.mkdir(parents=True, exist_ok=True)
    engines: dict[Name, StandingEngine] = {}
    try:
        for name, command_line in command_lines.items():
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", module, *command_line, cwd=ROOT, env=environment, stdin=PIPE, stdout=PIPE,
                stderr=STDOUT, start_new_session=True, limit=1 << 24,
            )  # fmt: skip
            engines[name] = StandingEngine(process, logs / f"{'-'.join(name).replace(' ', '-')}.log" if logs else None)
        await asyncio.gather(*(engine.start(timeout) for engine in engines.values()))
        yield engines
    finally:
        await asyncio.gather(*(engine.end() for engine in engines.values()), return_exceptions=True)
