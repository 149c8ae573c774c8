"""`hybrid-serve validate CONFIG`: would the running fleet hold this configuration? Every pool is planned for the devices
that its replicas measured, and all problems are told at once. Nothing is touched."""

import argparse
import json
from typing import NamedTuple

from hybrid_serve.cluster_connection import NoFleetError, SilentPlannerError, add_app, connected
from hybrid_serve.config_argument import add_config, load
from hybrid_serve.measured_devices import Devices, devices_line, measured_devices


class _Known(NamedTuple):
    """Devices by pool, and what is to be said about them."""

    devices: Devices
    notes: list[str]


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
    known = _known(arguments, [pool.pool.name for served in config.served for pool in served.served_pools])

    from deployments.fleet_report import plan_app, refused, table, to_json

    models = plan_app(config, known.devices)
    if arguments.json:
        print(json.dumps({"measured": sorted(known.devices), "notes": known.notes, **to_json(models)}, indent=2))
        return 1 if refused(models) else 0
    print("\n".join([*known.notes, "", table(models, config), ""]))
    problems = sum(len(model.problems) for model in models)
    print(f"{problems} problem{'' if problems == 1 else 's'}: it can't go out" if problems else "it can go out")
    return 1 if problems else 0


def _known(arguments: argparse.Namespace, pools: list[str]) -> _Known:
    if arguments.described:
        return _Known({}, ["devices as the configuration describes them; no cluster was asked"])
    try:
        with connected(arguments.address) as planner:
            devices, notes = measured_devices(planner, arguments.app)
    except SilentPlannerError:
        raise
    except NoFleetError as error:
        if arguments.address != "auto":
            raise
        return _Known({}, [f"devices as the configuration describes them: {error}"])
    return _Known(devices, [devices_line(devices, pools), *notes])
