"""An engine core does not outlive the process that started it."""

import multiprocessing
import os
import signal
import time
from multiprocessing.connection import Connection

import psutil

from hybrid_serve.engine.orphan import end_with_parent


def core(pipe: Connection) -> None:
    pipe.send((os.getpid(), end_with_parent(), end_with_parent()))
    time.sleep(60)


def starter(pipe: Connection) -> None:
    multiprocessing.get_context("spawn").Process(target=core, args=(pipe,)).start()
    time.sleep(60)


def test_a_core_whose_starter_is_killed_ends() -> None:
    ours, theirs = multiprocessing.Pipe()
    parent = multiprocessing.get_context("spawn").Process(target=starter, args=(theirs,))
    parent.start()
    assert ours.poll(30)
    pid, first, again = ours.recv()
    assert first and not again
    process = psutil.Process(pid)
    assert parent.pid is not None
    os.kill(parent.pid, signal.SIGKILL)
    process.wait(timeout=10)


def test_a_process_that_nobody_started_this_way_is_left_alone() -> None:
    assert not end_with_parent()
