"""`hybrid-serve validate CONFIG`: would the running fleet hold this configuration?

Every pool is planned for the devices that its replicas measured, and all problems are told at once. Nothing is touched.
"""

import argparse
import json
from typing import Any

from hybrid_serve.cluster_connection import add_app
from hybrid_serve.config_argument import add_config, load
from hybrid_serve.known_fleet import KnownFleet, known_fleet

DESCRIBED = KnownFleet({}, {}, "devices: as the configuration describes them; no cluster was asked")


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the subcommand."""
    command = commands.add_parser(
        "validate", help="whether the running fleet would hold a configuration", description=__doc__
    )
    add_config(command)
    command.add_argument(
        "--described", action="store_true", help="plan for the devices that the configuration names; ask no cluster"
    )
    command.add_argument("--json", action="store_true", help="JSON instead of a table")
    add_app(command)
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Plan and print. Exit status 1 if a pool can't hold it, 2 if the configuration is wrong or the cluster that is
    asked for does not answer."""
    config = load(arguments)
    known = DESCRIBED if arguments.described else known_fleet(arguments)

    from deployments.config_changes import retrained
    from deployments.fleet_report import plan_app, table, to_json
    from deployments.generation import Problems, offer_of

    models = plan_app(config, known.devices)
    offer = offer_of(config, arguments.app, known.devices)
    problems = offer.all if isinstance(offer, Problems) else retrained(offer, known.running)
    shown = to_json(models)
    devices = {pool["name"]: "measured" if pool["name"] in known.devices else "described" for pool in _pools(shown)}
    if arguments.json:
        told = [{"model": model, **vars(problem)} for model, problem in problems]
        print(json.dumps({"devices": devices, "note": known.note, "problems": told, **shown}, indent=2))
        return 1 if problems else 0
    lines = [known.note or _devices_line(devices), "", table(models, config), ""]
    if not isinstance(offer, Problems):
        lines += [f"refused, {problem}\n" for _, problem in problems]
    count = len(problems)
    lines.append(f"{count} problem{'' if count == 1 else 's'}: it can't go out" if count else "it can go out")
    print("\n".join(lines))
    return 1 if problems else 0


def _pools(shown: dict[str, Any]) -> list[dict[str, Any]]:
    return [pool for model in shown["models"] for pool in model["pools"]]


def _devices_line(devices: dict[str, str]) -> str:
    """Whose devices were measured, and whose were not."""
    sides = [(how, [pool for pool, what in devices.items() if what == how]) for how in ("measured", "described")]
    told = {"measured": "as their replicas measured them", "described": "as the configuration describes them"}
    return "; ".join(f"devices of {', '.join(pools)}: {told[how]}" for how, pools in sides if pools)
