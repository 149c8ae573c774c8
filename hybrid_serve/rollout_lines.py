"""A rollout in lines for people: what it is, and what has changed since it was looked at last. Pure."""

from collections.abc import Callable, Iterator
from typing import Any

Rollout = dict[str, Any]
"""As `Planner.rollouts` gives it."""

ENDS = frozenset({"done", "rolled back", "superseded", "app deleted"})
"""Phases that a rollout does not leave."""


def app_line(app: str, rollouts: dict[str, Any]) -> str:
    """One app of `Planner.rollouts`."""
    active = rollouts["rollout"]
    if not rollouts.get("deployed", True):
        return f"app {app}: not deployed any more, was at {_generation(rollouts['current'])}"
    line = f"app {app}: {_generation(rollouts['current'])}"
    if active is not None:
        line += f", {active['name']} to generation {active['to']}: {phase_words(active)}"
    return line


def _generation(number: int | None) -> str:
    return "no generation yet" if number is None else f"generation {number}"


def phase_words(rollout: Rollout) -> str:
    """`baking`, `rolling, wave 2, paused`, ..."""
    wave = f", wave {rollout['wave']}" if rollout["wave"] and rollout["phase"] == "rolling" else ""
    return str(rollout["phase"]) + wave + (", paused" if rollout["paused"] else "")


def title(rollout: Rollout) -> str:
    """What it does."""
    reason = f": {rollout['reason']}" if rollout["reason"] else ""
    kind = "" if rollout["kind"] == "rollout" else f" ({rollout['kind']})"
    return f"{rollout['name']}, generation {rollout['from']} -> {rollout['to']}{kind}, by {rollout['actor']}{reason}"


def end_words(rollout: Rollout) -> str:
    """How it ended."""
    match rollout["phase"]:
        case "done":
            return f"done: generation {rollout['to']} serves"
        case "rolled back":
            return f"rolled back: generation {rollout['from']} serves. {rollout['failure']}".rstrip()
        case phase:
            return f"{phase}: {rollout['failure']}"


class Changes:
    """What to tell of a rollout that is looked at again and again: everything at first, then what is not as it was.

    Replicas that a planner has not heard of yet since its restart are not listed by it. They are remembered here.
    """

    def __init__(self) -> None:
        self._title = False
        self._phase = ""
        self._failure = ""
        self._steps: dict[str, str] = {}
        self._gates: dict[tuple[str, str], str] = {}

    def of(self, rollout: Rollout) -> list[str]:
        """A line for each change. Figures that move are none, until a gate is judged by them."""
        lines = [] if self._title else [title(rollout)]
        self._title = True
        phase, before = phase_words(rollout), self._phase
        if phase != before:
            lines.append(end_words(rollout) if rollout["phase"] in ENDS else phase)
        self._phase = phase
        lines += self._of_steps(rollout["steps"])
        decided = before.startswith("baking") and not phase.startswith("baking")
        if rollout["phase"] in ("canary", "baking") or decided:
            lines += self._of_gates(rollout["gates"], decided=decided)
        if rollout["failure"] != self._failure and rollout["phase"] not in ENDS:
            lines.append(f"failed: {rollout['failure']}")
        self._failure = rollout["failure"]
        return lines

    def _of_steps(self, steps: list[dict[str, Any]]) -> Iterator[str]:
        for step in steps:
            words = _step_words(step)
            if words != self._steps.get(step["replica"]):
                yield f"  {words}"
            self._steps[step["replica"]] = words

    def _of_gates(self, gates: list[dict[str, Any]], *, decided: bool) -> Iterator[str]:
        """A line for a pool when one of its gates is judged otherwise than before, and when it was decided on them."""
        for pool in dict.fromkeys(gate["pool"] for gate in gates):
            compared = [gate for gate in gates if gate["pool"] == pool and gate["gate"] in _FIGURES]
            states = {(pool, gate["gate"]): gate["state"] for gate in compared}
            changed = any(state != self._gates.get(key, "waiting") for key, state in states.items())
            self._gates |= states
            if changed or (compared and decided):
                yield f"  pool {pool}: {', '.join(map(_gate_words, compared))}"


def _step_words(step: dict[str, Any]) -> str:
    """`h20 default#h20#ab12: draining, generation 1`."""
    canary = "canary, " if step.get("canary") else ""
    generation = "a generation that is not listed" if step["generation"] is None else f"generation {step['generation']}"
    reason = f": {step['reason']}" if step.get("reason") else ""
    return f"{step['pool']} {step['replica']}: {canary}{step['state']}, {generation}{reason}"


_FIGURES: dict[str, Callable[[float], str]] = {
    "error rate": "{:.2%}".format,
    "TTFT": lambda seconds: f"{1000 * seconds:.3g} ms",
    "time per output token": lambda seconds: f"{1000 * seconds:.3g} ms",
    "acceptance": "{:.2f}".format,
}
"""How the figures of the gates that compare are written."""


def _gate_words(gate: dict[str, Any]) -> str:
    """`TTFT 31 ms (old 26 ms)`, `acceptance waiting`, ..."""
    if gate["new"] is None:
        return f"{gate['gate']} {gate['state']}"
    figure = _FIGURES[gate["gate"]]
    old = "" if gate["old"] is None else f" (old {figure(gate['old'])})"
    state = "" if gate["state"] == "passed" else f" {gate['state']}"
    return f"{gate['gate']} {figure(gate['new'])}{old}{state}"
