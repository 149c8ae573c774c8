"""The processes that one engine starts, and the end of all of them: until then their memory is not free."""

import logging
import multiprocessing
import time
from collections.abc import Iterable
from contextlib import suppress
from multiprocessing.process import BaseProcess

import psutil

logger = logging.getLogger(__name__)

GRACE_S = 10.0
"""What workers get to end after their engine core, and a core that starts after its workers, before they are killed."""

POLL_S = 0.05


class EngineProcesses:
    """What this process has started through multiprocessing since this object was made, and what these started.

    One engine at a time: two that start side by side could not be told apart. Blocks: call it off the event loop.
    """

    def __init__(self) -> None:
        self._before = multiprocessing.active_children()
        self._seen: dict[int, set[psutil.Process]] = {}
        self._workers: dict[int, set[psutil.Process]] = {}
        self._alone_since: dict[int, float] = {}

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

    def kill_cores_without_workers(self) -> None:
        """Ends the engine cores that have been without their workers for `GRACE_S`. To be called again and again.

        A core whose workers died has failed, and whoever waits for its start is told when it exits. It may never: ZMQ's
        context waits for sockets that Python collected beside it (seen with vLLM 0.29.0 where the collection falls into
        an exit handler). Not noticed: a core that hangs with its only worker in its own process, and workers that no
        two calls saw.
        """
        for core in self._cores():
            assert core.pid is not None
            seen = _workers_of(core.pid)
            # Any program that the core starts has the core's own title for a moment, but not for two looks.
            workers = self._workers.setdefault(core.pid, set())
            workers |= seen & self._seen.get(core.pid, set())
            self._seen[core.pid] = seen
            if not workers or any(_is_alive(worker) for worker in workers):
                self._alone_since.pop(core.pid, None)
                continue
            if time.monotonic() - self._alone_since.setdefault(core.pid, time.monotonic()) > GRACE_S:
                logger.error(
                    "engine core %d did not end within %g s of its workers: killed. What its workers died of is in the "
                    "log above",
                    core.pid,
                    GRACE_S,
                )
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


def _workers_of(core: int) -> set[psutil.Process]:
    """Processes that an engine core started through multiprocessing, by their titles: vLLM gives one after a while."""
    workers: set[psutil.Process] = set()
    with suppress(psutil.NoSuchProcess):
        for child in psutil.Process(core).children():
            with suppress(psutil.NoSuchProcess):
                title = " ".join(child.cmdline())
                if "--multiprocessing-fork" in title or "::Worker" in title:
                    workers.add(child)
    return workers
