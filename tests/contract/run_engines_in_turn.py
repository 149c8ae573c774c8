"""Runs real engines one after the other in one process and prints what each came to, as JSON on the last line.

    python -m tests.contract.run_engines_in_turn '[{"tokens": 7}, {"tokens": 5}]'

Each task has the keys of `run_engine`, and `give_up_after`: seconds after which its start is cancelled.
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
        answer = await given_up(task) if "give_up_after" in task else await live(task, DRAFT_DIR)
        pauses.cancel()
        seconds = time.monotonic() - began
        came.append(answer | {"left": left(), "seconds": seconds, "longest_pause": (await pauses)})
    return came


async def given_up(task: dict[str, Any]) -> dict[str, Any]:
    config, _ = configured(task, DRAFT_DIR)
    starting = asyncio.ensure_future(VLLMEngine().start(config))
    await asyncio.sleep(task["give_up_after"])
    starting.cancel()
    began = time.monotonic()
    await asyncio.wait({starting})
    return {"cancelled": starting.cancelled(), "took": time.monotonic() - began}


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
    lines = [" ".join(child.cmdline()) or child.status() for child in psutil.Process().children(recursive=True)]
    return [line for line in lines if "resource_tracker" not in line]


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    print(json.dumps(asyncio.run(run(json.loads(sys.argv[1])))))
