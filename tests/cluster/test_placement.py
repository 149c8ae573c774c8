"""Where Ray puts replicas of pools: by label, with all GPUs of a replica on one node."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.cluster

CONFIGS = Path(__file__).parents[2] / "configs"


@pytest.fixture(scope="module")
def placed() -> dict[str, dict[str, Any]]:
    """Configuration -> pool -> where a replica of it found itself."""
    names = ("fleet.yaml", "demo-fleet.yaml")
    program = [sys.executable, "-m", "tests.cluster.placement_program", *(str(CONFIGS / name) for name in names)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    done = subprocess.run(program, capture_output=True, text=True, timeout=240, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    return dict(zip(names, map(json.loads, lines), strict=True))


def accelerators(found: dict[str, Any]) -> dict[str, str]:
    return {name: where["accelerator"] for name, where in found.items()}


def test_gpu_pools_are_placed_by_their_accelerator_and_a_replicas_gpus_are_of_one_node(placed: dict[str, Any]) -> None:
    """Two nodes of two L40S and one of four: a replica of four goes to the one, and in no placement group, in which
    vLLM would look for other nodes."""
    found = placed["fleet.yaml"]
    assert accelerators(found) == {"h20": "H20", "h200": "H200", "l40s": "L40S"}
    assert {name: where["gpus"] for name, where in found.items()} == {"h20": 1, "h200": 1, "l40s": 4}
    assert found["l40s"]["node_gpus"] == 4
    assert not any(where["in_placement_group"] for where in found.values())


def test_cpu_pools_are_placed_by_label_and_take_no_gpu(placed: dict[str, Any]) -> None:
    found = placed["demo-fleet.yaml"]
    assert accelerators(found) == {"h20": "H20", "h200": "H200", "l40s": "L40S"}
    assert {where["gpus"] for where in found.values()} == {0}
