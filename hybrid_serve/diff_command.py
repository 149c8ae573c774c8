"""`hybrid-serve diff CONFIG`: what this configuration would change in the running app, field by field, and at what cost:
which replicas restart, and what each pool holds before and after. Nothing is touched."""

import argparse
import json
from typing import TYPE_CHECKING, Any

from hybrid_serve.cluster_connection import add_app, connected
from hybrid_serve.columns import aligned, number
from hybrid_serve.config_argument import add_config, load
from hybrid_serve.new_generation import NotPossibleError, new_generation

if TYPE_CHECKING:
    from hybrid_serve.rollout.wire import GenerationOffer

HOW = {
    "live": "in place, nothing restarts",
    "replan": "engines restart in their replicas, each after its requests",
    "replace": "new replicas instead of these",
    "added": "new replicas",
    "removed": "these end after their requests",
}
"""What a change costs a pool."""

FIELDS = ("field", "now", "then", "cost")
POOLS = ("pool", "cost", "KV tokens", "requests at once", "K", "plan")
FIGURES = ("kv_tokens", "concurrency", "num_speculative_tokens", "plan_id")


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the subcommand."""
    command = commands.add_parser("diff", help="what a configuration would change, and at what cost", description=__doc__)
    add_config(command)
    command.add_argument("--json", action="store_true", help="JSON instead of tables")
    add_app(command)
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Compare and print. Exit status 1 if a pool can't hold the configuration, 2 if it is wrong or there is no cluster
    to compare with."""
    config = load(arguments)
    with connected(arguments.address) as planner:
        current = planner.ask("generation", arguments.app, None)
        replicas = planner.ask("status")["replicas"]
        try:
            offer = new_generation(config, planner, arguments.app).offer
        except NotPossibleError as error:
            print(json.dumps({"problems": error.problems}, indent=2) if arguments.json else error)
            return 1
    found = difference(current, offer, _fields(current["config"], offer.config), replicas)
    print(json.dumps(found, indent=2) if arguments.json else text(found))
    return 0


def _fields(now: dict[str, Any], then: dict[str, Any]) -> list[dict[str, Any]]:
    from deployments.config_changes import changes

    return [{"field": one.field, "now": one.now, "then": one.then, "cost": one.cost} for one in changes(now, then)]


def difference(
    current: dict[str, Any], offer: "GenerationOffer", fields: list[dict[str, Any]], replicas: list[dict[str, Any]]
) -> dict[str, Any]:
    """Plain values. `replicas` as in the planner's status."""
    names = list(dict.fromkeys([*current["pools"], *offer.pools]))
    return {
        "generation": current["number"],
        "digest": {"now": current["digest"], "then": offer.digest},
        "fields": fields,
        "pools": [_pool(name, current["pools"].get(name), offer, replicas) for name in names],
    }


def _pool(
    name: str, now: dict[str, Any] | None, offer: "GenerationOffer", replicas: list[dict[str, Any]]
) -> dict[str, Any]:
    then = vars(offer.pools[name]) if name in offer.pools else None
    figures = {
        figure: {side: None if values is None else values[figure] for side, values in (("now", now), ("then", then))}
        for figure in FIGURES
    }
    cost = _cost(now, then)
    restarting = cost in ("replan", "replace", "removed")
    ids = sorted(replica["replica_id"] for replica in replicas if replica["pool"] == name)
    return {"pool": name, "cost": cost, "restart": ids if restarting else [], **figures}


def _cost(now: dict[str, Any] | None, then: dict[str, Any] | None) -> str:
    if now is None:
        return "added"
    if then is None:
        return "removed"
    if now["placement_digest"] != then["placement_digest"]:
        return "replace"
    return "replan" if now["engine_digest"] != then["engine_digest"] else "live"


def text(found: dict[str, Any]) -> str:
    """For people: fields, then pools, then who restarts and how."""
    if found["digest"]["now"] == found["digest"]["then"]:
        return f"generation {found['generation']} is this already: nothing would change"
    lines = [f"generation {found['generation']} ({found['digest']['now']}) -> {found['digest']['then']}", ""]
    if found["fields"]:
        lines += aligned(FIELDS, [tuple(_shown(field[title]) for title in FIELDS) for field in found["fields"]])
    else:
        lines.append("no field changes, but what the checkpoints hold does: one was trained in place, or a branch moved")
    lines += ["", *aligned(POOLS, [_row(pool) for pool in found["pools"]]), ""]
    for pool in found["pools"]:
        if pool["cost"] == "live":
            continue
        count = len(pool["restart"])
        who = f": {', '.join(pool['restart'])}" if count else ""
        lines.append(f"{pool['pool']}, {HOW[pool['cost']]}{who}")
    if all(pool["cost"] == "live" for pool in found["pools"]):
        lines.append(HOW["live"])
    return "\n".join(lines)


def _row(pool: dict[str, Any]) -> tuple[str, ...]:
    return (
        pool["pool"],
        pool["cost"],
        _pair(pool["kv_tokens"], number),
        _pair(pool["concurrency"], lambda value: "-" if value is None else f"{value:.1f}"),
        _pair(pool["num_speculative_tokens"], number),
        _pair(pool["plan_id"], lambda value: value or "-"),
    )


def _pair(sides: dict[str, Any], shown: Any) -> str:
    now, then = shown(sides["now"]), shown(sides["then"])
    return str(now) if now == then else f"{now} -> {then}"


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
