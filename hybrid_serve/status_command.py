"""`hybrid-serve status`: the running fleet, as the planner knows it. Changes nothing; starts nothing."""

import argparse
import json
from typing import Any

from hybrid_serve.cluster_connection import add_address, connected
from hybrid_serve.columns import aligned, number
from hybrid_serve.rollout_lines import app_line

TITLES = (
    "model",
    "pool",
    "replica",
    "state",
    "plan",
    "predicted KV tokens",
    "actual",
    "groups",
    "source",
    "max_model_len",
    "generation",
)
NUMBERS = frozenset({"predicted KV tokens", "actual", "groups", "max_model_len", "generation"})


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the subcommand."""
    command = commands.add_parser("status", help="the running fleet", description=__doc__)
    add_address(command)
    command.add_argument("--json", action="store_true", help="everything the planner knows, as JSON")
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Ask and print. Exit status 1 if a replica does not run its plan or the book is not consistent, 2 if there is no
    Ray or no planner."""
    status = ask(arguments.address)
    print(json.dumps(status, indent=2) if arguments.json else table(status))
    return 1 if status["integrity"] or any(r["state"] == "mismatch" for r in status["replicas"]) else 0


def ask(address: str) -> dict[str, Any]:
    """The planner's `status`, and below `rollouts` each app's generation and rollout.

    Raises:
        NoFleetError: no Ray at the address, no planner in it, or one that does not answer.
    """
    with connected(address) as planner:
        return {**planner.ask("status"), "rollouts": planner.ask("rollouts", None)}


def table(status: dict[str, Any]) -> str:
    """The fleet for people: each app's generation, replicas, what does not run as planned, the last refusals."""
    replicas = sorted(status["replicas"], key=lambda r: (r["model_name"], r["pool"], r["replica_id"]))
    apps = status["rollouts"]
    lines = [app_line(app, rollouts) for app, rollouts in sorted(apps.items())]
    runs = {one["replica"]: one["generation"] for app in apps.values() for one in app["replicas"]}
    rows = [_row(replica, runs.get(replica["replica_id"])) for replica in replicas]
    lines += aligned(TITLES, rows, NUMBERS) if rows else ["no replica is known to the planner"]
    for replica in replicas:
        lines += [f"  {replica['replica_id']}: {difference}" for difference in replica["differences"]]
        if replica["note"]:
            lines.append(f"  {replica['replica_id']}: {replica['note']}")
    for refused in status["refused"]:
        lines.append(
            f"refused {refused['times']} x, last {refused['seconds_ago']:.0f} s ago: {refused['model_name']} "
            f"(declared as {refused['generation']}): {refused['reason']}"
        )
    again = status["starts"] - 1
    lines.append(f"planner: started {status['starts']} x ({again} restart{'' if again == 1 else 's'})")
    if status["forgotten_for_space"]:
        lines.append(
            f"more replicas than the planner keeps in view ({status['forgotten_for_space']} x one was dropped): they "
            "serve on, but not all of them are shown"
        )
    if status["integrity"]:
        lines.append(f"THE PLANNER'S BOOK IS NOT CONSISTENT: {status['integrity']}")
    return "\n".join(lines)


def _row(replica: dict[str, Any], generation: int | None) -> tuple[str, ...]:
    """`generation`: the number of the one that it runs; None if none is counted."""
    plan, report = replica["plan"], replica["report"]
    predicted, actual = replica["predicted_kv_tokens"], None if report is None else report["kv_tokens"]
    return (
        replica["model_name"],
        replica["pool"],
        replica["replica_id"],
        replica["state"],
        replica["plan_id"] or "-",
        number(predicted),
        "= " + number(actual) if actual == predicted else number(actual),
        "-" if plan is None else str(len(plan["groups"])),
        replica["source"],
        number(replica["max_model_len"]),
        number(generation),
    )
