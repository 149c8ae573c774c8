"""`hybrid-serve diff CONFIG`: what this configuration would change in the running app, field by field.

And at what cost: which replicas restart and how, and what each pool holds before and after. Nothing is touched.
"""

import argparse
import json
from collections.abc import Callable
from typing import Any

from hybrid_serve.cluster_connection import add_app, connected
from hybrid_serve.columns import aligned, number
from hybrid_serve.config_argument import add_config, load

HOW = {
    "adopt": "none restarts",
    "replan": "engines restart inside their replicas, each after its requests",
    "replace": "Ray Serve replaces the replicas",
    "add": "new replicas start",
    "remove": "the replicas end after their requests",
}
"""What a pool's replicas do."""

FIELDS = ("field", "now", "then", "cost")
POOLS = ("pool", "cost", "KV tokens", "requests at once", "K", "plan")
LONGEST = 60
"""Characters of a value in the table; --json has it whole."""


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the subcommand."""
    command = commands.add_parser(
        "diff", help="what a configuration would change, and at what cost", description=__doc__
    )
    add_config(command)
    command.add_argument("--json", action="store_true", help="JSON instead of tables")
    add_app(command)
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Compare and print. Exit status 1 if a pool can't hold the configuration, 2 if it is wrong or there is no cluster
    to compare with."""
    config = load(arguments)

    from deployments.config_changes import changes_between
    from deployments.generation import Problems
    from deployments.rollout_requests import planned
    from deployments.running_generation import running_generation

    with connected(arguments.address) as planner:
        now = planner.through(lambda handle: running_generation(handle, arguments.app))
        offer = planner.through(lambda handle: planned(handle, config, arguments.app))
        replicas = planner.ask("rollouts", arguments.app)[arguments.app]["replicas"]
    if isinstance(offer, Problems):
        print(json.dumps({"problems": offer.to_json()}, indent=2) if arguments.json else f"refused, {offer}")
        return 1
    found = {
        "generation": now.number,
        "digest": {"now": now.offer.digest, "then": offer.digest},
        **changes_between(now.offer, offer).to_json(),
    }
    for pool in found["pools"]:
        restarts = pool["how"] in ("replan", "replace", "remove")
        pool["replicas"] = [one["replica"] for one in replicas if restarts and one["pool"] == pool["pool"]]
    print(json.dumps(found, indent=2) if arguments.json else text(found))
    return 0


def text(found: dict[str, Any]) -> str:
    """For people: fields, then pools, then who restarts and how."""
    number_now, digest = found["generation"], found["digest"]
    same = digest["now"] == digest["then"]
    if same and not found["fields"]:
        return f"generation {number_now} is this already: nothing would change"
    if same:
        lines = [f"generation {number_now} is this already; what differs is how the next one goes out", ""]
    else:
        lines = [f"generation {number_now} ({digest['now']}) -> {digest['then']}", ""]
    if found["fields"]:
        lines += aligned(FIELDS, [_field(change) for change in found["fields"]])
    else:
        lines.append("no field differs, but a checkpoint does: another commit of a branch, or trained in place")
    lines += ["", *aligned(POOLS, [_pool(pool) for pool in found["pools"]]), ""]
    lines += [f"{old} is renamed {new}: to Ray Serve that is another pool" for old, new in found["renamed"]]
    for pool in found["pools"]:
        ids = f": {', '.join(pool['replicas'])}" if pool["replicas"] else ""
        lines.append(f"{pool['pool']}: {HOW[pool['how']]}{ids}")
    if found["ingress_restarts"]:
        lines.append("ingress: Ray Serve replaces the replicas")
    return "\n".join(lines)


def _field(change: dict[str, Any]) -> tuple[str, ...]:
    return (change["path"], _value(change["old"]), _value(change["new"]), change["cost"])


def _value(value: Any) -> str:
    if value is None:
        return "-"
    words = value if isinstance(value, str) else json.dumps(value)
    return words if len(words) <= LONGEST else f"{words[: LONGEST - 3]}..."


def _pool(pool: dict[str, Any]) -> tuple[str, ...]:
    cost = {"adopt": "live", "replan": "replan"}.get(pool["how"], "replace")

    def sides(figure: str, shown: Callable[[Any], str]) -> str:
        now, then = (
            "-" if pool[side] is None or pool[side][figure] is None else shown(pool[side][figure])
            for side in ("before", "after")
        )
        return now if now == then else f"{now} -> {then}"

    return (
        pool["pool"],
        cost,
        sides("kv_tokens", number),
        sides("concurrency", "{:.1f}".format),
        sides("num_speculative_tokens", number),
        sides("plan_id", str),
    )
