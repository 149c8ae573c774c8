"""A rollout as a user begins it, by the command in a process of its own; and as the planner tells of it, sampled."""

import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray

logger = logging.getLogger(__name__)

AWAY = (ray.exceptions.RayError, ValueError)
"""What asking a planner raises that has just been killed."""


class Command:
    """`hybrid-serve ...`, which began when this was made."""

    def __init__(self, address: str, name: str, *arguments: str) -> None:
        """`address`: of Ray's head."""
        self._printed: list[str] = []
        self.process = subprocess.Popen(
            [sys.executable, "-m", "hybrid_serve.cli", name, *arguments, "--address", address],
            cwd=Path.cwd(),
            env=os.environ | {"PYTHONPATH": str(Path.cwd())},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        self._printed.extend(self.process.stdout)

    def wait(self, seconds: float) -> int:
        """The exit status. Raises TimeoutError with what was printed so far."""
        try:
            status = self.process.wait(seconds)
        except subprocess.TimeoutExpired as error:
            self.process.kill()
            raise TimeoutError(f"{error}:\n{self.printed[-3000:]}") from None
        self._reading.join()
        return status

    @property
    def printed(self) -> str:
        """What it printed until now."""
        return "".join(self._printed)

    @property
    def objects(self) -> list[dict[str, Any]]:
        """What `--json` printed."""
        return [json.loads(line) for line in self.printed.splitlines() if line.startswith("{")]


class Watch:
    """The app's rollouts from now until `close`, as the planner tells of them every `period_s`."""

    def __init__(self, ask: Callable[[], dict[str, Any]], period_s: float = 0.2) -> None:
        """`ask`: what the planner knows of the app; may raise as Ray does while the planner is away."""
        self._ask = ask
        self._period_s = period_s
        self._closed = threading.Event()
        self.known: dict[str, Any] = ask()
        self._seen: list[tuple[float, str, str]] = []
        self._thread = threading.Thread(target=self._look_on, daemon=True)
        self._thread.start()

    def _look_on(self) -> None:
        while not self._closed.wait(self._period_s):
            try:
                self.known = self._ask()
            except AWAY:
                continue
            rollout = self.rollout or self.known.get("last")
            if rollout and (not self._seen or self._seen[-1][1:] != (rollout["name"], rollout["phase"])):
                self._seen.append((time.monotonic(), rollout["name"], rollout["phase"]))
                logger.info("%s is %s %s", rollout["name"], rollout["phase"], rollout["failure"])

    @property
    def rollout(self) -> dict[str, Any] | None:
        """The active one, as it was last told."""
        return self.known.get("rollout")

    def until(self, condition: Callable[[dict[str, Any]], Any], what: str, seconds: float = 120.0) -> Any:
        """The condition's value over what is known, once it is true.

        Raises:
            TimeoutError: with what is known.
        """
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if value := condition(self.known):
                return value
            time.sleep(self._period_s / 2)
        raise TimeoutError(f"not within {seconds:g} s: {what}; known is {json.dumps(self.known)[:3000]}")

    def until_phase(self, phase: str, seconds: float = 240.0) -> dict[str, Any]:
        """The active rollout once it is in a phase."""
        found: dict[str, Any] = self.until(
            lambda known: (known.get("rollout") or {}).get("phase") == phase and known["rollout"], phase, seconds
        )
        return found

    def until_over(self, name: str, seconds: float = 400.0) -> dict[str, Any]:
        """A rollout once it has ended."""

        def ended(known: dict[str, Any]) -> dict[str, Any] | None:
            last: dict[str, Any] | None = known.get("last")
            return last if last and last["name"] == name and not known.get("rollout") else None

        found: dict[str, Any] = self.until(ended, f"{name} is over", seconds)
        return found

    def phases(self, name: str) -> dict[str, float]:
        """Seconds that a rollout was seen in each phase; 0.0 for its end."""
        seen = [entry for entry in self._seen if entry[1] == name]
        ends = [at for at, _, _ in seen[1:]] + [seen[-1][0] if seen else 0.0]
        spent: dict[str, float] = {}
        for (at, _, phase), end in zip(seen, ends, strict=True):
            spent[phase] = round(spent.get(phase, 0.0) + end - at, 1)
        return spent

    def close(self) -> None:
        self._closed.set()
        self._thread.join()
