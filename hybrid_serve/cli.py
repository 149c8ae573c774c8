"""`hybrid-serve`: what every engine will do, before a weight is read."""

import argparse
import sys
from collections.abc import Sequence

from hybrid_serve import explain_command, fit_command, fleet_command, plan_command, status_command
from hybrid_serve.facts.errors import FactsError


def parser() -> argparse.ArgumentParser:
    """The command line, one subcommand a module."""
    top = argparse.ArgumentParser(prog="hybrid-serve", description=__doc__)
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in (plan_command, explain_command, fit_command, fleet_command, status_command):
        command.add_to(commands)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0 done; 1 no plan is possible; 2 wrong arguments or checkpoints."""
    arguments = parser().parse_args(argv)
    try:
        status: int = arguments.run(arguments)
    except FactsError as error:
        print(f"hybrid-serve {arguments.command}: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        return 0
    return status


if __name__ == "__main__":
    sys.exit(main())
