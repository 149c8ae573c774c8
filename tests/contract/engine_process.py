"""A real engine in a process of its own (`run_engine.py`), by the interpreter of the vLLM that is to be run."""

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Run:
    """What `tests.contract.run_engine` printed, and the engine's log."""

    answer: dict[str, Any]
    log: str

    @property
    def logged_kv_tokens(self) -> int:
        """vLLM's own line."""
        (found,) = set(re.findall(r"[GC]PU KV cache size: ([\d,]+) tokens", self.log))
        return int(found.replace(",", ""))


def run_engine(env: dict[str, str] | None = None, python: str = sys.executable, **task: Any) -> Run:
    task = {"policy": "best", "drafter": True} | task
    return Run(*printed([python, "-m", "tests.contract.run_engine", json.dumps(task)], "{", env))


def printed(command: list[str], opening: str, env: dict[str, str] | None = None) -> tuple[Any, str]:
    """The JSON on the last line that begins with `opening`, and all that the command printed."""
    process = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | {"VLLM_LOGGING_LEVEL": "INFO"} | (env or {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=550,
    )
    last = next((line for line in reversed(process.stdout.splitlines()) if line.startswith(opening)), None)
    assert last is not None, f"no answer was printed:\n{process.stdout[-8000:]}"
    return json.loads(last), process.stdout


def started(**task: Any) -> Run:
    """An engine that has to start; if it does not, the test shows what it logged."""
    run = run_engine(**task)
    assert "error" not in run.answer, run.log[-8000:]
    return run


def agreement(ours: list[list[int]], theirs: list[list[int]]) -> float:
    """Share of positions with the same token; a near-tie that rounds differently costs the rest of its answer."""
    pairs = list(zip(ours, theirs, strict=True))
    equal = sum(x == y for a, b in pairs for x, y in zip(a, b, strict=False))
    return equal / sum(max(len(a), len(b)) for a, b in pairs)
