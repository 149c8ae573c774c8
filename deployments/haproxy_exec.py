"""Stands in for the HAProxy program where Ray Serve starts it; see `deployments.local_haproxy`.

A plain script, so that it starts fast: python haproxy_exec.py BINARY ARGUMENTS...
"""

import ctypes
import os
import re
import signal
import sys
from pathlib import Path

PR_SET_PDEATHSIG = 1


def local(configuration: str) -> str:
    """The same configuration with everything on 127.0.0.1, and without splicing."""
    configuration = re.sub(r"^(\s*bind )\*?:", r"\g<1>127.0.0.1:", configuration, flags=re.M)
    return re.sub(r"^\s*option splice-.*\n", "", configuration, flags=re.M)


def end_with_parent() -> None:
    """The kernel ends this process when the one that started it is gone: nobody else would."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def main(binary: str, arguments: list[str]) -> None:
    for argument in arguments:
        if argument.endswith(".cfg"):
            file = Path(argument)
            file.write_text(local(file.read_text()))
    if sys.platform == "linux":
        end_with_parent()
    os.execv(binary, [binary, *arguments])


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
