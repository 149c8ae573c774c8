"""The processes that one engine starts, and the end of all of them: until then their memory is not free."""

import multiprocessing
import time
from collections.abc import Iterable
from contextlib import suppress
from multiprocessing.process import BaseProcess

import psutil

GRACE_S = 10.0
"""Workers end with their engine core; those that have not by then are killed."""

POLL_S = 0.05


class EngineProcesses:
    """What this process has started through multiprocessing since this object was made, and what these started.

    One engine at a time: two that start side by side could not be told apart. Blocks: call it off the event loop.
    """

    def __init__(self) -> None:
        self._before = multiprocessing.active_children()

    def running(self) -> list[psutil.Process]:
        """Engine cores and all below them."""
        found: list[psutil.Process] = []
        for core in self._cores():
            with suppress(psutil.NoSuchProcess):
                process = psutil.Process(core.pid)
                found += [process, *process.children(recursive=True)]
        return found

    def kill(self) -> None:
        """Ends the engine cores at once; whoever waits for one of them is told by that."""
        for core in self._cores():
            core.kill()

    def wait_for_end(self, processes: Iterable[psutil.Process]) -> None:
        """Returns when these have ended; what is left after `GRACE_S` is killed."""
        for deadline, kill in ((time.monotonic() + GRACE_S, False), (time.monotonic() + 2 * GRACE_S, True)):
            alive = [process for process in processes if _is_alive(process)]
            if kill:
                for process in alive:
                    with suppress(psutil.NoSuchProcess):
                        process.kill()
            while alive and time.monotonic() < deadline:
                time.sleep(POLL_S)
                alive = [process for process in alive if _is_alive(process)]
        self._cores()

    def _cores(self) -> list[BaseProcess]:
        """Those that run; one that has ended is waited for, so that no zombie stays."""
        return [child for child in multiprocessing.active_children() if child not in self._before]


def _is_alive(process: psutil.Process) -> bool:
    """A killed process is called a zombie as soon as its first thread has ended; while others are on their way out,
    its memory is not free."""
    with suppress(psutil.NoSuchProcess):
        if process.is_running():
            return process.status() != psutil.STATUS_ZOMBIE or process.num_threads() > 1
    return False
