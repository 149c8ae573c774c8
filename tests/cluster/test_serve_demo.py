"""The runner and `serve run` as a user meets them: in processes of their own, which must leave nothing behind."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import yaml

from deployments.local_haproxy import free_port
from tests.cluster.conftest import until
from tests.demo_app import app_values

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).parents[2]
STOP_S = 120


def plain_environment() -> dict[str, str]:
    """Without what the Ray of this test session needs."""
    return {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}


class Runner:
    """One `python -m deployments.serve_demo`, and every process that was ever seen below it."""

    def __init__(self, config: Path, log: Path) -> None:
        self.port, self._log = free_port(), log
        command = [sys.executable, "-u", "-m", "deployments.serve_demo", "--port", str(self.port), "--config", config]
        self.process = subprocess.Popen(
            command, cwd=ROOT, stdout=log.open("w"), stderr=subprocess.STDOUT, env=plain_environment()
        )
        self.seen: dict[int, psutil.Process] = {}

    @property
    def output(self) -> str:
        return self._log.read_text()

    def says(self, pattern: str) -> bool:
        with suppress(psutil.NoSuchProcess):
            self.seen |= {child.pid: child for child in psutil.Process(self.process.pid).children(recursive=True)}
        assert self.process.poll() is None, self.output
        return re.search(pattern, self.output) is not None

    def alive(self) -> list[str]:
        names = []
        for child in self.seen.values():
            with suppress(psutil.NoSuchProcess):
                names += [child.name()] if running(child) else []
        return names

    def left(self) -> list[str]:
        """Once it has ended: what still runs. A process that was killed may take a moment to be gone."""
        with suppress(AssertionError):
            until(lambda: self.alive() == [], seconds=5)
        return self.alive()

    def outside(self) -> set[str]:
        """Where this machine could be reached from others: processes, and the addresses on which they listen."""
        found = set()
        for process in filter(running, self.seen.values()):
            with suppress(psutil.NoSuchProcess):
                name, connections = process.name(), process.net_connections("inet")
                ips = [each.laddr.ip for each in connections if each.status == psutil.CONN_LISTEN]
                found |= {f"{name} {ip}" for ip in ips if not ip.endswith("127.0.0.1")}
        return found

    def stop(self, number: signal.Signals) -> int:
        self.says("")
        self.process.send_signal(number)
        return self.process.wait(STOP_S)


def running(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


@contextmanager
def runner(folder: Path, pair: Path, **fake: Any) -> Iterator[Runner]:
    config = folder / "app.yaml"
    config.write_text(yaml.safe_dump(app_values(pair, vllm_args=fake)))
    run = Runner(config, folder / "log")
    try:
        yield run
    finally:
        if run.process.poll() is None:
            run.process.terminate()
            run.process.wait(STOP_S)


def test_it_serves_on_loopback_only_and_ctrl_c_leaves_nothing(tmp_path: Path, pair_folder: Path) -> None:
    with runner(tmp_path, pair_folder) as run:
        until(lambda: run.says("ready: "), seconds=180)
        assert f"ready: http://127.0.0.1:{run.port}/v1 serves demo" in run.output
        (request,) = [line.rpartition(" -d ")[2].strip("'") for line in run.output.splitlines() if "try: curl" in line]
        url = f"http://127.0.0.1:{run.port}/v1/chat/completions"
        assert httpx.post(url, json=json.loads(request), timeout=20).status_code == 200
        run.says("")
        assert run.outside() == set()
        assert run.stop(signal.SIGINT) == 0
        assert run.left() == []
        assert "Traceback" not in run.output


def test_it_stops_while_an_engine_starts(tmp_path: Path, pair_folder: Path) -> None:
    with runner(tmp_path, pair_folder, start_s=600) as run:
        until(lambda: run.says(r"weights \d"), seconds=180)
        started = time.monotonic()
        assert run.stop(signal.SIGTERM) == 0
        assert time.monotonic() - started < 60
        assert run.left() == []


def test_it_says_why_an_engine_did_not_start(tmp_path: Path, pair_folder: Path) -> None:
    with runner(tmp_path, pair_folder, fail="no luck today") as run:
        assert run.process.wait(STOP_S) == 1
        assert "Error: cpu: hybrid_serve.engine.base.EngineStartError: no luck today\n" in run.output


@pytest.mark.parametrize(
    "command",
    [
        [sys.executable, "-m", "deployments.serve_demo", "--config", "CONFIG", "engine.max_modle_len=5"],
        [sys.executable, "-m", "ray.serve.scripts", "run", "deployments:app", "config=CONFIG", "max_modle_len=5"],
    ],
    ids=["serve_demo", "serve run"],
)
def test_a_mistake_is_one_readable_error_before_ray_starts(
    tmp_path: Path, pair_folder: Path, command: list[str]
) -> None:
    config = tmp_path / "app.yaml"
    config.write_text(yaml.safe_dump(app_values(pair_folder, num_speculative_tokens=7)))
    command = [part.replace("CONFIG", str(config)) for part in command]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, env=plain_environment())
    assert run.returncode != 0
    assert f"Error: {config}: 1 mistake in the configuration\n" in run.stderr
    assert "max_modle_len: unknown key; did you mean engine.max_model_len" in run.stderr
    assert "Traceback" not in run.stderr + run.stdout and "Started a local Ray" not in run.stderr
