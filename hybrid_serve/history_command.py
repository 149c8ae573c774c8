"""`hybrid-serve history`: every step of every rollout, who asked for it and why; and the generations that there are."""

import argparse
import json
from typing import Any

from hybrid_serve.cluster_connection import add_address, connected
from hybrid_serve.columns import aligned

EVENTS = ("at (UTC)", "app", "rollout", "generation", "event", "by", "reason")
GENERATIONS = ("app", "generation", "state", "made (UTC)", "by", "digest")


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the subcommand."""
    command = commands.add_parser("history", help="generations and the steps of rollouts", description=__doc__)
    command.add_argument("--app", help="of one app (default: all)")
    add_address(command)
    command.add_argument("--json", action="store_true", help="JSON instead of tables")
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Ask and print."""
    with connected(arguments.address) as planner:
        events: list[dict[str, Any]] = planner.ask("history", arguments.app)
        rollouts: dict[str, Any] = planner.ask("rollouts", arguments.app)
    generations = {app: values["generations"] for app, values in rollouts.items()}
    if arguments.json:
        print(json.dumps({"events": events, "generations": generations}, indent=2))
    else:
        print(tables(events, rollouts))
    return 0


def tables(events: list[dict[str, Any]], rollouts: dict[str, Any]) -> str:
    """Generations of each app, then events, oldest first."""
    generations = [
        _generation(app, generation, values)
        for app, values in sorted(rollouts.items())
        for generation in values["generations"]
    ]
    blocks = [aligned(GENERATIONS, generations, {"generation"}) if generations else ["no generation is known"]]
    if events:
        blocks.append(aligned(EVENTS, [_event(event) for event in events], {"generation"}))
    return "\n\n".join("\n".join(lines) for lines in blocks)


def _generation(app: str, generation: dict[str, Any], values: dict[str, Any]) -> tuple[str, ...]:
    state = str(generation["state"])
    if generation["number"] == values["current"]:
        current = "current" if values.get("deployed", True) else "was current"
        state = current if state == "current" else f"{state}, {current}"
    return (
        app,
        str(generation["number"]),
        state,
        _moment(generation["created_at"]),
        str(generation["actor"]),
        str(generation["digest"]),
    )


def _event(event: dict[str, Any]) -> tuple[str, ...]:
    return (
        _moment(event["at"]),
        event["app"],
        event["rollout"] or "",
        "" if event["generation"] is None else str(event["generation"]),
        " ".join(filter(None, (event.get("replica"), event["event"]))),
        event["actor"] or "",
        event["reason"] or "",
    )


def _moment(at: str) -> str:
    """An ISO time to the second, without its zone."""
    return at[:19].replace("T", " ")
