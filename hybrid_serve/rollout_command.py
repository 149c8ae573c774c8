"""`hybrid-serve rollout CONFIG`: the configuration goes out to the running fleet, by canaries and in waves.

It is planned for every pool, and refused before anything is touched if one can't hold it. Then the planner rolls it
out, and back by itself if a health gate fails; this command only shows it. Ctrl-C leaves it running
(`hybrid-serve rollout --attach` shows it again); `hybrid-serve rollback` takes it back.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hybrid_serve.cluster_connection import PlannerConnection, add_app, caller, connected
from hybrid_serve.config_argument import WrongArgumentsError, add_config, load
from hybrid_serve.interrupts import leave_with
from hybrid_serve.known_fleet import known_fleet
from hybrid_serve.rollout.wire import RolloutOptions
from hybrid_serve.rollout_watch import GoneError, Lines, Objects, Show, watch
from hybrid_serve.serve_config_file import write_serve_config

if TYPE_CHECKING:
    from deployments.config import AppConfig

DETACHED = 3
"""Exit status: the rollout goes on without being watched."""


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the subcommand."""
    command = commands.add_parser("rollout", help="a configuration to the running fleet", description=__doc__)
    add_config(command, required=False)
    command.add_argument("--attach", action="store_true", help="show the active rollout and begin none")
    command.add_argument("--canary", metavar="N|P%", help="replicas of each pool that go first; 0: none")
    command.add_argument("--bake", metavar="TIME", help="that they serve before the rest follows, e.g. 30s or 5m")
    command.add_argument("--max-unavailable", metavar="N|P%", help="replicas of the app without an engine at once")
    command.add_argument("--allow-outage", action="store_true", help="even if a model is without a replica meanwhile")
    command.add_argument(
        "--serve-config", metavar="FILE", help="write what `serve deploy FILE` takes, and begin nothing"
    )
    add_watching(command)
    command.set_defaults(run=run)


def add_watching(command: argparse.ArgumentParser) -> None:
    """The options of the commands that begin a rollout and show it."""
    command.add_argument("--reason", default="", metavar="TEXT", help="for the history")
    command.add_argument("--detach", action="store_true", help="begin it and don't show it")
    command.add_argument("--json", action="store_true", help="a JSON object a line for each change")
    add_app(command)


def run(arguments: argparse.Namespace) -> int:
    """Begin and show. Exit status: 0 done, or nothing to do; 1 refused or rolled back; 2 wrong arguments, no cluster;
    3 it goes on without being watched."""
    if arguments.attach:
        if arguments.config is not None:
            raise WrongArgumentsError(f"--attach begins nothing: leave {arguments.config} out")
        with connected(arguments.address) as planner:
            return _attach(planner, arguments)
    if arguments.config is None:
        raise WrongArgumentsError("give a configuration, or --attach for the rollout that is active")
    config = load(arguments)
    options = _options(arguments, config)
    if arguments.serve_config is not None:
        return _write(arguments, config)
    from deployments.rollout_requests import request

    with connected(arguments.address) as planner:
        try:
            answer = planner.through(lambda _: request(config, arguments.app, options, caller(), arguments.reason))
        except KeyboardInterrupt:
            leave_with(DETACHED)
            print(f"\nit may have begun: {_again(arguments)} shows it", file=sys.stderr)
            return DETACHED
        return answered(planner, arguments, answer)


def _options(arguments: argparse.Namespace, config: "AppConfig") -> RolloutOptions:
    """The configuration's, with what the command line says instead."""
    from deployments.errors import AppError

    try:
        return config.rollout.options(
            canary=arguments.canary,
            bake=arguments.bake,
            max_unavailable=arguments.max_unavailable,
            allow_outage=arguments.allow_outage,
        )
    except AppError as error:
        raise WrongArgumentsError(str(error)) from None


def _write(arguments: argparse.Namespace, config: "AppConfig") -> int:
    """For `serve deploy`, which says in the configuration how it goes out, too."""
    from deployments.generation import Problems, offer_of
    from deployments.overrides import from_command_line

    given = [name for name in ("canary", "bake", "max_unavailable", "allow_outage") if getattr(arguments, name)]
    if given:
        raise WrongArgumentsError(
            f"--{given[0].replace('_', '-')} is for a rollout that begins here: for `serve deploy` write into the "
            "configuration how it goes out, e.g. rollout.canary=10% or rollout.bake_s=5m"
        )
    offer = offer_of(config, arguments.app, known_fleet(arguments).devices)
    if isinstance(offer, Problems):
        return _refused(arguments, {"refused": str(offer), "problems": offer.to_json()})
    began_with = {"config": str(Path(arguments.config).absolute()), **from_command_line(arguments.overrides)}
    print(write_serve_config(Path(arguments.serve_config), offer, began_with, arguments.reason))
    return 0


def _refused(arguments: argparse.Namespace, answer: dict[str, Any]) -> int:
    if arguments.json:
        print(json.dumps({"app": arguments.app, **answer}), flush=True)
    else:
        print(f"hybrid-serve {arguments.command}: {answer['refused']}", file=sys.stderr)
    return 1


def answered(
    planner: PlannerConnection, arguments: argparse.Namespace, answer: dict[str, Any], *, undoing: bool = False
) -> int:
    """What the planner said to a wish for a rollout, then the rollout itself until it ends.

    `undoing`: it is wished that a rollout that is active ends rolled back.
    """
    if "refused" in answer:
        return _refused(arguments, answer)
    if arguments.json:
        print(json.dumps({"app": arguments.app, **answer}), flush=True)
    if "unchanged" in answer:
        if not arguments.json:
            print(f"generation {answer['unchanged']} is this already: nothing to do")
        return 0
    name = str(answer.get("started") or answer["attached"])
    if "attached" in answer and not arguments.json:
        print(f"{name} does this already", flush=True)
    if arguments.detach:
        if not arguments.json:
            print(f"{name} has begun: {_again(arguments)} shows it")
        return 0
    return follow(planner, arguments, name, undoing=undoing)


def follow(planner: PlannerConnection, arguments: argparse.Namespace, name: str, *, undoing: bool = False) -> int:
    """Shows a rollout until it ends or Ctrl-C. The exit status, see `run`."""
    show: Show = Objects(arguments.app) if arguments.json else Lines()
    try:
        end = watch(planner, arguments.app, name, show)
    except GoneError as error:
        print(f"hybrid-serve {arguments.command}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        leave_with(DETACHED)
        print(f"\n{name} goes on: {_again(arguments)} shows it, hybrid-serve rollback takes it back", file=sys.stderr)
        return DETACHED
    taken_back = undoing and end["kind"] != "rollback" and end["phase"] == "rolled back"
    return 0 if end["phase"] == "done" or taken_back else 1


def _attach(planner: PlannerConnection, arguments: argparse.Namespace) -> int:
    known = planner.ask("rollouts", arguments.app).get(arguments.app, {})
    rollout = known.get("rollout") or known.get("last")
    if rollout is None:
        raise WrongArgumentsError(f"no rollout of app {arguments.app} is known: hybrid-serve rollout CONFIG begins one")
    return follow(planner, arguments, rollout["name"])


def _again(arguments: argparse.Namespace) -> str:
    app = "" if arguments.app == "default" else f" --app {arguments.app}"
    address = "" if arguments.address == "auto" else f" --address {arguments.address}"
    return f"hybrid-serve rollout --attach{app}{address}"
