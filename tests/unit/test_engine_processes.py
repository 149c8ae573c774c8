"""An engine has ended when all of its processes have."""

import multiprocessing
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection

import psutil
import pytest

from hybrid_serve.engine import processes
from hybrid_serve.engine.processes import EngineProcesses

SPAWN = multiprocessing.get_context("spawn")


def worker(pipe: Connection) -> None:
    pipe.send("here")
    time.sleep(60)


def core(pipe: Connection) -> None:
    SPAWN.Process(target=worker, args=(pipe,)).start()
    time.sleep(60)


def large_core(pipe: Connection) -> None:
    block = bytearray(b"x") * (256 << 20)  # its pages are touched: to free them takes a while
    threading.Thread(target=time.sleep, args=(60,)).start()
    pipe.send("here")
    time.sleep(60)
    del block


def started_core(target: Callable[[Connection], None] = core) -> multiprocessing.process.BaseProcess:
    ours, theirs = SPAWN.Pipe()
    process = SPAWN.Process(target=target, args=(theirs,), name="EngineCore")
    process.start()
    assert ours.poll(30) and ours.recv() == "here"
    return process


def test_workers_that_outlive_their_core_are_waited_for_and_then_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "GRACE_S", 0.3)
    before = SPAWN.Process(target=time.sleep, args=(60,))
    before.start()
    engine = EngineProcesses()
    process = started_core()
    running = engine.running()
    names = [" ".join(each.cmdline()) for each in running]
    assert len([name for name in names if "spawn_main" in name]) == 2 and before.pid not in [
        each.pid for each in running
    ]
    engine.kill()
    engine.wait_for_end(running)
    assert not process.is_alive() and process.exitcode is not None, "no zombie is left"
    assert not [each for each in running if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]
    assert engine.running() == [] and before.is_alive()
    before.kill()
    before.join()


def test_an_engine_whose_threads_are_still_ending_is_waited_for() -> None:
    engine = EngineProcesses()
    process = started_core(large_core)
    running = engine.running()
    engine.kill()
    engine.wait_for_end(running)
    assert not psutil.pid_exists(process.pid), "it is gone, and so is its memory; no zombie is left either"
