"""Ctrl-C, pressed again while a command is on its way out."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = """
import atexit, sys, time
from contextlib import contextmanager
from hybrid_serve import cli, rollout_command
from tests.planner_double import rollout, rollouts

def leave(when):
    if when == SLOW:
        print("leaving", flush=True)
        time.sleep(60)

class Planner:
    def ask(self, method, *arguments, timeout_s=0):
        return rollouts(rollout("baking"))

@contextmanager
def connected(address):
    try:
        yield Planner()
    finally:
        leave("with the connection")

rollout_command.connected = connected
atexit.register(leave, "with the process")
SLOW, sys.argv[1:] = sys.argv[1], ["rollout", "--attach"]
sys.exit(cli.main())
"""


@pytest.mark.parametrize("when", ["with the connection", "with the process"])
def test_a_second_ctrl_c_while_detaching_leaves_at_once_without_a_traceback(when: str) -> None:
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, when],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell's background job ignores it, and so would all that it starts.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        assert program.stdout is not None
        for awaited in ("baking", "leaving"):
            assert any(awaited in line for line in program.stdout), program.communicate()
            program.send_signal(signal.SIGINT)
        _, told = program.communicate(timeout=30)
    finally:
        program.kill()
    assert program.returncode == 3 and "rollout-2 goes on" in told and "Traceback" not in told, told
