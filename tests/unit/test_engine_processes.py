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


def core_that_hangs(pipe: Connection) -> None:
    short = SPAWN.Process(target=pipe.recv)
    short.start()
    pipe.send("here")
    short.join()
    time.sleep(60)


def core_of_its_own(pipe: Connection) -> None:
    pipe.send("here")
    time.sleep(60)


def started_core(target: Callable[[Connection], None] = core) -> multiprocessing.process.BaseProcess:
    return started_core_and_pipe(target)[0]


def started_core_and_pipe(
    target: Callable[[Connection], None],
) -> tuple[multiprocessing.process.BaseProcess, Connection]:
    ours, theirs = SPAWN.Pipe()
    process = SPAWN.Process(target=target, args=(theirs,), name="EngineCore")
    process.start()
    assert ours.poll(30) and ours.recv() == "here"
    return process, ours


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


def test_a_core_that_does_not_end_with_its_workers_is_killed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(processes, "GRACE_S", 1.0)
    engine = EngineProcesses()
    hung, to_worker = started_core_and_pipe(core_that_hangs)
    working, without = started_core(), started_core(core_of_its_own)
    wait_for(lambda: len(engine.running()) == 5)
    for _ in range(2):
        engine.kill_cores_without_workers()
    to_worker.send("end")
    wait_for(lambda: len(engine.running()) == 4)
    engine.kill_cores_without_workers()
    assert hung.is_alive(), "it has its time to end by itself"
    time.sleep(1.1)
    engine.kill_cores_without_workers()
    hung.join(10)
    assert not hung.is_alive() and f"engine core {hung.pid} did not end within 1 s of its workers" in caplog.text
    time.sleep(1.1)
    engine.kill_cores_without_workers()
    assert working.is_alive() and without.is_alive()
    running = engine.running()
    engine.kill()
    engine.wait_for_end(running)


def wait_for(condition: Callable[[], bool], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.05)
