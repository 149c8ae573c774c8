"""What a user sees when an app can't be built or started: text, and no traceback."""

import re

import click


class AppError(click.ClickException):
    """The app can't be built or started; the message says what, where and what to change.

    `serve run` is a click program, so it prints `Error: <message>` and exits with status 1.
    """

    def __reduce__(self) -> tuple[type["AppError"], tuple[str]]:
        return type(self), (self.message,)

    def __str__(self) -> str:
        return self.message


def last_exception(message: str) -> str:
    """The last exception of a traceback, without the traceback; any other text as it is."""
    found = list(re.finditer(r"^[\w.]*(?:Error|Exception): ", message, flags=re.M))
    return message[found[-1].start() :].strip() if found else message
