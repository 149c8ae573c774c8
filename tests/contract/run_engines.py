"""Runs the real engines that it is asked for, one after the other, and prints what came of each on a line of its own.

    echo '{"policy": "best", "drafter": true, "prompts": 50}' | python -m tests.contract.run_engines

A task has the keys of `run_engine`, and:

    give_up      its start is cancelled in the middle
    environment  environment variables while it starts
"""

import asyncio
import json
import logging
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil

from hybrid_serve.demo.geometry import DRAFT_DIR
from hybrid_serve.engine.vllm_engine import VLLMEngine
from tests.contract.run_engine import configured, run

ANSWER = "ANSWER "
"""What a line with an answer (JSON) begins with."""


async def run_each_asked() -> None:
    """One after the other, until nobody can ask any more."""
    while task := await asyncio.to_thread(sys.stdin.readline):
        # On a line of its own, also after a progress bar, which ends none. By one call: others write to this pipe.
        sys.stdout.write(f"\n{ANSWER}{json.dumps(await run_one(json.loads(task)))}\n")
        sys.stdout.flush()


async def run_one(task: dict[str, Any]) -> dict[str, Any]:
    """What the engine came to, and what was left of it."""
    began = time.monotonic()
    pauses = asyncio.ensure_future(longest_pause())
    with environment(task.get("environment", {})):
        answer = await given_up(task) if task.get("give_up") else await run(task)
    pauses.cancel()
    seconds = time.monotonic() - began
    return answer | {"left": left(), "seconds": seconds, "longest_pause": (await pauses)}


@contextmanager
def environment(values: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


async def given_up(task: dict[str, Any]) -> dict[str, Any]:
    config, _ = configured(task, DRAFT_DIR)
    engine = VLLMEngine()
    starting = asyncio.ensure_future(engine.start(config))
    # A core takes its title when it has imported vLLM. It has yet to load its weights, however fast the machine is.
    while not starting.done() and not any("EngineCore" in line for line in left()):
        await asyncio.sleep(0.05)
    starting.cancel()
    began = time.monotonic()
    await asyncio.wait({starting})
    took = time.monotonic() - began
    if not starting.cancelled():
        await engine.stop()  # or the engines after it would have to share the machine
    return {"cancelled": starting.cancelled(), "took": took}


async def longest_pause() -> float:
    """Until it is cancelled: seconds for which the event loop did nothing else, at most."""
    longest, before = 0.0, time.monotonic()
    try:
        while True:
            await asyncio.sleep(0.02)
            longest, before = max(longest, time.monotonic() - before), time.monotonic()
    except asyncio.CancelledError:
        return longest


def left() -> list[str]:
    """What runs below this process, but for multiprocessing's own tracker, which stays."""
    lines = map(described, psutil.Process().children(recursive=True))
    return [line for line in lines if line and "resource_tracker" not in line]


def described(child: psutil.Process) -> str:
    """Its command line; empty if it ended while it was looked at."""
    try:
        return " ".join(child.cmdline()) or child.status()
    except psutil.ZombieProcess:
        return psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return ""


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    asyncio.run(run_each_asked())
