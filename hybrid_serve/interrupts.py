"""Ctrl-C in the process of a command: the first is told to the command, a second ends the process at once.

Leaving takes Ray a second or two, in which people press it again: that would show a traceback out of Ray's shutdown.
"""

import os
import signal
from types import FrameType

INTERRUPTED = 130

_status = INTERRUPTED


def begin() -> None:
    """From now on in this process, which does nothing but run a command; not where Ctrl-C is ignored, as with nohup.

    Call it from the main thread.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _first)


def leave_with(status: int) -> None:
    """The exit status of this process if it is interrupted once more. Changes nothing without `begin`."""
    global _status
    _status = status


def _first(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGINT, _again)
    raise KeyboardInterrupt


def _again(number: int, frame: FrameType | None) -> None:
    os._exit(_status)
