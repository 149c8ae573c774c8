"""Fixtures that several kinds of tests share."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from xdist.scheduler import LoadFileScheduling

from hybrid_serve.demo.geometry import DraftGeometry, TargetGeometry

# vLLM binds an engine's worker for life to cores that it chooses by the machine alone, of two always to the same one,
# where engines wait for each other while the other core idles. A thread for each is what they have there.
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
os.environ.setdefault("OMP_NUM_THREADS", "1")

_VLLM_BEFORE = {name: value for name, value in os.environ.items() if name.startswith("VLLM")}

# A commit's generated problems are the same wherever its tests run, and no example fails for being slow on a busy
# machine; `make explore` draws others.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("exploring", derandomize=False, deadline=None)
settings.load_profile("repeatable")


class RealEnginesInTurn(LoadFileScheduling):
    """Files to processes; those named `test_real_...` all to one, which runs them one after the other.

    They start vLLM itself, and such an engine takes two cores: its core and its worker wait for each other by looking
    again and again. Fake engines mostly sleep, and a file with them hardly slows one with real engines.
    """

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        return "real engines" if "/test_real_" in file else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> RealEnginesInTurn | None:
    return RealEnginesInTurn(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_itemcollected(item: pytest.Item) -> None:
    if item.get_closest_marker("cluster"):
        item.add_marker("engines")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that may take long come first, so that no process has one left to run when the others are through."""
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    items[:] = [item for _, tests in sorted(files.items(), key=_longest_first) for item in tests]


def _longest_first(file: tuple[Path, list[pytest.Item]]) -> tuple[float, int]:
    """By the time that a test of the file may take at most, then by their number."""
    limits = [marker.args[0] for item in file[1] if (marker := item.get_closest_marker("timeout"))]
    return -max(limits, default=0), -len(file[1])


def pytest_collection_finish() -> None:
    """A test module that sets vLLM's switches when it is imported sets them for every engine that any test starts."""
    now = {name: value for name, value in os.environ.items() if name.startswith("VLLM")}
    if now != _VLLM_BEFORE:
        raise pytest.UsageError(f"importing the tests changed vLLM's environment from {_VLLM_BEFORE} to {now}")


@pytest.fixture(scope="session")
def pair_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `target/config.json` and `draft/config.json` of the demo pair's geometry, without weights."""
    folder = tmp_path_factory.mktemp("pair")
    target = TargetGeometry()
    for name, config in (("target", target.config()), ("draft", DraftGeometry().config(target))):
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps(config))
    return folder
