"""`hybrid-serve explain`: why stock vLLM fails or wastes memory on one replica, in words and numbers."""

import argparse
from textwrap import fill

from hybrid_serve import plan_options
from hybrid_serve.plan.explain import explain
from hybrid_serve.plan.verdict import Impossible

WIDTH = 100


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the subcommand."""
    command = commands.add_parser("explain", help="why stock vLLM fails or wastes memory", description=__doc__)
    plan_options.add_pair(command)
    plan_options.add_device(command)
    plan_options.add_engine(command)
    plan_options.add_workload(command)
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Explain and print. Exit status 1 if nothing fits."""
    inputs, _ = plan_options.problem(arguments)
    found = explain(inputs)
    paragraphs = [fill(paragraph, WIDTH, break_long_words=False, break_on_hyphens=False) for paragraph in found.text]
    print("\n\n".join(paragraphs))
    return 1 if isinstance(found.decision.chosen, Impossible) else 0
