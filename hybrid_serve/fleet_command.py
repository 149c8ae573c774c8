"""`hybrid-serve fleet plan CONFIG`: the plan of each pool of an app, and what the pools agree on. Starts nothing."""

import argparse
import json
import sys


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the subcommand."""
    fleet = commands.add_parser("fleet", help="the pools of an app", description=__doc__)
    actions = fleet.add_subparsers(dest="action", required=True, metavar="ACTION")
    plan = actions.add_parser("plan", help="the plan of each pool, without starting anything", description=__doc__)
    plan.add_argument("config", help="configuration file of the app, as for `serve run deployments:app config=FILE`")
    plan.add_argument("overrides", nargs="*", metavar="key=value", help="e.g. pools.h200.tensor_parallel_size=2")
    plan.add_argument("--json", action="store_true", help="JSON instead of a table")
    plan.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Plan and print. Exit status 1 if the app would be refused, 2 if the configuration is wrong."""
    # The app's side imports Ray, which the other commands do without.
    from deployments.errors import AppError
    from deployments.fleet_report import plan_app, refused, table, to_json
    from deployments.loading import load_config
    from deployments.overrides import from_command_line

    try:
        config = load_config(arguments.config, from_command_line(arguments.overrides))
    except AppError as error:
        print(f"hybrid-serve fleet plan: {error}", file=sys.stderr)
        return 2
    models = plan_app(config)
    print(json.dumps(to_json(models), indent=2) if arguments.json else table(models, config))
    return 1 if refused(models) else 0
