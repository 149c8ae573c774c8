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
    lines += _gates(old["gates"], now["gates"])
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


def _gates(old: list[dict[str, Any]], now: list[dict[str, Any]]) -> Iterator[str]:
    seen = {(gate["pool"], gate["gate"]): gate["state"] for gate in old}
    for gate in now:
        if gate["state"] != seen.get((gate["pool"], gate["gate"])):
            yield f"  {gate_words(gate)}"


def gate_words(gate: dict[str, Any]) -> str:
    """`gate ttft of pool h20: ok: old 0.026, new 0.031, limit 2`."""
    figures = ", ".join(f"{side} {_figure(gate[side])}" for side in ("old", "new", "limit") if gate[side] is not None)
    told = gate["text"] or figures
    return f"gate {gate['gate']} of pool {gate['pool']}: {gate['state'].replace('_', ' ')}" + (
        f": {told}" if told else ""
    )


def _figure(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
