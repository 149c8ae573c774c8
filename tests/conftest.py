"""Fixtures that several kinds of tests share."""

import json
import os
from pathlib import Path

import pytest
from hypothesis import settings

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


def pytest_itemcollected(item: pytest.Item) -> None:
    if item.get_closest_marker("cluster"):
        item.add_marker("engines")


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
