"""A rollout in lines for people: what it is, and what has changed since it was looked at last. Pure."""

from collections.abc import Iterator
from typing import Any

Rollout = dict[str, Any]
"""As `Planner.rollouts` gives it."""

ENDS = frozenset({"done", "rolled_back", "superseded"})
"""Phases that a rollout does not leave."""


def app_line(app: str, rollouts: dict[str, Any]) -> str:
    """One app of `Planner.rollouts`."""
    active = rollouts["rollout"]
    line = f"app {app}: {_generation(rollouts['current'])}"
    if active is not None:
        line += f", {active['name']} to generation {active['to']}: {phase_words(active)}"
    return line


def _generation(number: int | None) -> str:
    return "no generation yet" if number is None else f"generation {number}"


def phase_words(rollout: Rollout) -> str:
    """`baking`, `rolling, wave 2, paused`, ..."""
    wave = f", wave {rollout['wave']}" if rollout["wave"] and rollout["phase"] == "rolling" else ""
    return rollout["phase"].replace("_", " ") + wave + (", paused" if rollout["paused"] else "")


def title(rollout: Rollout) -> str:
    """What it does."""
    return f"{rollout['name']}: generation {rollout['from']} -> {rollout['to']} ({rollout['kind']})"


def end_words(rollout: Rollout) -> str:
    """How it ended."""
    to, back = f"generation {rollout['to']}", f"generation {rollout['from']}"
    match rollout["phase"]:
        case "done":
            return f"done: {to} serves"
        case "rolled_back":
            why = f": {rollout['failure']}" if rollout["failure"] else ""
            return f"rolled back, {back} serves{why}"
        case phase:
            return f"{phase.replace('_', ' ')}: {rollout['failure'] or 'the app was deployed by Ray Serve meanwhile'}"


def changes(before: Rollout | None, now: Rollout) -> list[str]:
    """A line for each thing that is not as it was; everything if there is nothing before. Figures alone are none."""
    old = before or {"phase": None, "wave": None, "paused": False, "steps": [], "gates": [], "failure": ""}
    lines = []
    if before is None:
        lines.append(title(now))
    if (old["phase"], old["wave"], old["paused"]) != (now["phase"], now["wave"], now["paused"]):
        lines.append(phase_words(now))
    lines += _steps(old["steps"], now["steps"])
    lines += _gates(old["gates"], now["gates"], decided=old["phase"] == "baking" != now["phase"])
    if now["failure"] and now["failure"] != old["failure"]:
        lines.append(f"failed: {now['failure']}")
    return lines


def _steps(old: list[dict[str, Any]], now: list[dict[str, Any]]) -> Iterator[str]:
    seen = {step["replica"]: _step_words(step) for step in old}
    for step in now:
        if (words := _step_words(step)) != seen.pop(step["replica"], None):
            yield f"  {step['pool']} {step['replica']}: {words}"
    for replica in seen:
        yield f"  {replica}: gone"


def _step_words(step: dict[str, Any]) -> str:
    generation = step.get("generation")
    return step["state"].replace("_", " ") + ("" if generation is None else f", generation {generation}")


def _gates(old: list[dict[str, Any]], now: list[dict[str, Any]], *, decided: bool) -> Iterator[str]:
    """Of each pool, what is compared once there is something to see, and again when it was decided on; and whatever has
    failed."""
    before = {(gate["pool"], gate["gate"]): gate["state"] for gate in old}
    for pool in dict.fromkeys(gate["pool"] for gate in now):
        gates = [gate for gate in now if gate["pool"] == pool]
        compared = [gate for gate in gates if gate["gate"] in _FIGURES]
        changed = any(gate["state"] != before.get((pool, gate["gate"]), "waiting") for gate in compared)
        if compared and (changed or decided):
            yield f"  {pool}: {', '.join(map(_compared, compared))}"
        for gate in gates:
            if gate["state"] == "failed" != before.get((pool, gate["gate"])):
                yield f"  failed: {gate['text']}"


_FIGURES = {
    "error rate": "{:.2%}".format,
    "TTFT": lambda seconds: f"{1000 * seconds:.3g} ms",
    "time per output token": lambda seconds: f"{1000 * seconds:.3g} ms",
    "acceptance": "{:.2f}".format,
}
"""How the figures of the gates that compare are written."""


def _compared(gate: dict[str, Any]) -> str:
    """`TTFT 31 ms (old 26 ms)`, `acceptance waiting`, ..."""
    if gate["new"] is None:
        return f"{gate['gate']} {gate['state']}"
    figure = _FIGURES[gate["gate"]]
    old = "" if gate["old"] is None else f" (old {figure(gate['old'])})"
    state = "" if gate["state"] == "passed" else f" {gate['state']}"
    return f"{gate['gate']} {figure(gate['new'])}{old}{state}"
