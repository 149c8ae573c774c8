"""The configuration that a command is given."""

import argparse
from typing import TYPE_CHECKING

from hybrid_serve.cluster_connection import show_the_token

if TYPE_CHECKING:
    from deployments.config import AppConfig


class WrongArgumentsError(Exception):
    """The command was given what it can't take; the message says what and what to write instead."""


def add_config(command: argparse.ArgumentParser, *, required: bool = True) -> None:
    """Add the file and its overrides."""
    command.add_argument(
        "config",
        nargs=None if required else "?",
        help="configuration file of the app, as for `serve run deployments:app config=FILE`",
    )
    command.add_argument("overrides", nargs="*", metavar="key=value", help="e.g. engine.num_speculative_tokens=5")


def load(arguments: argparse.Namespace) -> "AppConfig":
    """The configuration, with its overrides.

    Raises:
        WrongArgumentsError: every mistake in it.
    """
    # The app's side imports Ray, which other commands do without.
    show_the_token()
    from deployments.errors import AppError
    from deployments.loading import load_config
    from deployments.overrides import from_command_line

    try:
        return load_config(arguments.config, from_command_line(arguments.overrides))
    except AppError as error:
        raise WrongArgumentsError(str(error)) from None
