"""`hybrid-serve pause` and `resume`: a rollout takes no further step, or goes on. A gate that fails while it is paused
still rolls it back."""

import argparse
import json
import sys
from typing import Any

from hybrid_serve.cluster_connection import add_app, caller, connected

COMMANDS = {
    "pause": "the active rollout takes no further step",
    "resume": "a paused rollout goes on",
}


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add both subcommands."""
    for name, text in COMMANDS.items():
        command = commands.add_parser(name, help=text, description=__doc__)
        add_app(command)
        command.add_argument("--json", action="store_true", help="the planner's answer, as JSON")
        command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Ask and print. Exit status 1 if there is nothing to pause or resume."""
    with connected(arguments.address) as planner:
        answer: dict[str, Any] = planner.ask(arguments.command, arguments.app, caller())
    refused = answer.get("refused", "")
    if arguments.json:
        print(json.dumps(answer))
    elif refused:
        print(f"hybrid-serve {arguments.command}: {refused}", file=sys.stderr)
    else:
        print(_told(arguments.command, answer))
    return 1 if refused else 0


def _told(command: str, answer: dict[str, Any]) -> str:
    if "unchanged" in answer:
        return "it is paused already" if command == "pause" else "it is not paused"
    (name,) = answer.values()
    return f"{name} is paused: hybrid-serve resume goes on with it" if command == "pause" else f"{name} goes on"
