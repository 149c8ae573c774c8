"""Runs real engines one after the other in one process and prints what each came to, as JSON on the last line.

    python -m tests.contract.run_engines_in_turn '[{"tokens": 7}, {"tokens": 5}]'

Each task has the keys of `run_engine`, and `give_up`: its start is cancelled in the middle.
"""

import asyncio
import json
import logging
import sys
import time
from typing import Any

import psutil

from hybrid_serve.demo.geometry import DRAFT_DIR
from hybrid_serve.engine.vllm_engine import VLLMEngine
from tests.contract.run_engine import configured, live


async def run(tasks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What each engine came to, and what was left of it."""
    came = []
    for task in tasks:
        task = {"policy": "best", "drafter": True} | task
        began = time.monotonic()
        pauses = asyncio.ensure_future(longest_pause())
        answer = await given_up(task) if task.get("give_up") else await live(task, DRAFT_DIR)
        pauses.cancel()
        seconds = time.monotonic() - began
        came.append(answer | {"left": left(), "seconds": seconds, "longest_pause": (await pauses)})
    return came


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
    print(json.dumps(asyncio.run(run(json.loads(sys.argv[1])))))
