"""`hybrid-serve rollback`: back to the generation before, or to one that `hybrid-serve history` names.

A rollout that is active is taken back. Otherwise every replica is put on the last good generation before the current
one, without canary or bake: it was planned before and has served, so nothing is planned anew, and nothing is downloaded
that is still in the nodes' caches.
"""

import argparse

from hybrid_serve.cluster_connection import caller, connected
from hybrid_serve.rollout_command import add_watching, answered


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the subcommand."""
    command = commands.add_parser("rollback", help="the generation before, again", description=__doc__)
    command.add_argument("--to", type=int, metavar="G", help="number of the generation (default: the last good one)")
    add_watching(command)
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Begin and show. Exit status: 0 done, or nothing to do; 1 refused or failed; 2 no cluster, or no such
    generation; 3 it goes on without being watched."""
    with connected(arguments.address) as planner:
        answer = planner.ask("rollback", arguments.app, arguments.to, caller(), arguments.reason)
        return answered(planner, arguments, answer, undoing=True)
