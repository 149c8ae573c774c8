"""The error a user sees when an app can't be built: text, and no traceback from `serve run`."""

import click


class AppError(click.ClickException):
    """The app can't be built or started; the message says what, where and what to change.

    `serve run` is a click program, so it prints `Error: <message>` and exits with status 1.
    """

    def __reduce__(self) -> tuple[type["AppError"], tuple[str]]:
        return type(self), (self.message,)

    def __str__(self) -> str:
        return self.message
