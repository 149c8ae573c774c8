"""Real engines in a process of its own (`run_engines.py`), by the interpreter of the vLLM that is to be run.

One process runs them one after the other, as a replica does that changes its generation: what vLLM takes to be imported
is spent once.
"""

import atexit
import json
import os
import re
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.contract.run_engines import ANSWER

ROOT = Path(__file__).parents[2]
LONGEST_S = 550.0


@dataclass(frozen=True)
class Run:
    """What an engine came to, and what was logged meanwhile."""

    answer: dict[str, Any]
    log: str

    @property
    def logged_kv_tokens(self) -> int:
        """vLLM's own line."""
        (found,) = set(re.findall(r"[GC]PU KV cache size: ([\d,]+) tokens", self.log))
        return int(found.replace(",", ""))


class EngineProcess:
    """`run_engines` with one interpreter, in a session of its own; all of it ends with this process."""

    def __init__(self, python: str = sys.executable, env: dict[str, str] | None = None) -> None:
        self._process = subprocess.Popen(
            [python, "-m", "tests.contract.run_engines"],
            cwd=ROOT,
            env=os.environ | {"VLLM_LOGGING_LEVEL": "INFO"} | (env or {}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        atexit.register(self.kill)

    @property
    def runs(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        """With its engines."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def run(self, **task: Any) -> Run:
        """One engine's life. Whatever keeps it from an answer kills the process: the next answer would be this one's.

        Raises:
            AssertionError: no answer, with the end of what was logged.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        task = {"policy": "best", "drafter": True} | task
        too_long = threading.Timer(LONGEST_S, self.kill)
        too_long.start()
        lines: list[str] = []
        try:
            print(json.dumps(task), file=self._process.stdin, flush=True)
            for line in self._process.stdout:
                if line.startswith(ANSWER):
                    return Run(json.loads(line.removeprefix(ANSWER)), "".join(lines))
                lines.append(line)
        except BaseException:
            self.kill()
            raise
        finally:
            too_long.cancel()
        self.kill()
        raise AssertionError(f"{self._process.returncode} and no answer to {task}:\n{''.join(lines)[-8000:]}")


_processes: dict[tuple[str, str], EngineProcess] = {}


def run_engine(env: dict[str, str] | None = None, python: str = sys.executable, **task: Any) -> Run:
    """`env` is for the process, which others share that want the same; the task's `environment` for one engine."""
    key = (python, json.dumps(env, sort_keys=True))
    process = _processes.get(key)
    if process is None or not process.runs:
        process = _processes[key] = EngineProcess(python, env)
    return process.run(**task)


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
