"""`hybrid-serve`: what every engine will do, before a weight is read."""

import argparse
import sys
from collections.abc import Sequence

from hybrid_serve import (
    diff_command,
    explain_command,
    fit_command,
    fleet_command,
    history_command,
    interrupts,
    pause_command,
    plan_command,
    rollback_command,
    rollout_command,
    status_command,
    validate_command,
)
from hybrid_serve.cluster_connection import NoFleetError, UnknownToPlannerError
from hybrid_serve.config_argument import WrongArgumentsError
from hybrid_serve.facts.errors import FactsError

COMMANDS = (
    plan_command,
    explain_command,
    fit_command,
    fleet_command,
    status_command,
    validate_command,
    diff_command,
    rollout_command,
    rollback_command,
    pause_command,
    history_command,
)


def parser() -> argparse.ArgumentParser:
    """The command line, one subcommand a module."""
    top = argparse.ArgumentParser(prog="hybrid-serve", description=__doc__)
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in COMMANDS:
        command.add_to(commands)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0 done; 1 no plan is possible, or a rollout was refused or rolled back; 2 wrong arguments or
    checkpoints, no cluster; 3 a rollout goes on without being watched; 130 interrupted.

    Without `argv` it is this process's program, and ends it at a second Ctrl-C.
    """
    if argv is None:
        interrupts.begin()
    arguments = _parsed(argv)
    try:
        status: int = arguments.run(arguments)
    except (FactsError, WrongArgumentsError, NoFleetError, UnknownToPlannerError) as error:
        print(f"hybrid-serve {arguments.command}: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        return 0
    except KeyboardInterrupt:
        return interrupts.INTERRUPTED
    return status


def _parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    """argparse takes no `key=value` that comes after an option."""
    arguments, rest = parser().parse_known_args(argv)
    overrides = [word for word in rest if "=" in word and not word.startswith("-")]
    if rest and (rest != overrides or not hasattr(arguments, "overrides")):
        parser().error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        arguments.overrides = [*arguments.overrides, *rest]
    return arguments


if __name__ == "__main__":
    sys.exit(main())
