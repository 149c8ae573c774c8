"""Qwen3.5-35B-A3B and its drafter as folders: configs of the published shapes, weights that take no room."""

import json
from pathlib import Path
from typing import Any

import yaml

from tests.unit.facts_checkpoints import dflash, qwen3_5, write_checkpoint

CONFIGS = Path(__file__).parents[2] / "configs"
TARGET_BYTES = 70 * 10**9
DRAFTER_BYTES = 10**9


def sparse_weights(folder: Path, data_bytes: int) -> None:
    """A safetensors file of `data_bytes` that takes no room: all of its data is a hole."""
    header = json.dumps({"w": {"dtype": "BF16", "shape": [data_bytes // 2], "data_offsets": [0, data_bytes]}}).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + data_bytes)


def gpu_fleet(folder: Path) -> dict[str, Any]:
    """configs/fleet.yaml, over folders in the place of the hub's models."""
    target = write_checkpoint(folder / "target", qwen3_5())
    drafter = write_checkpoint(folder / "drafter", dflash())
    sparse_weights(folder / "target", TARGET_BYTES)
    sparse_weights(folder / "drafter", DRAFTER_BYTES)
    values: dict[str, Any] = yaml.safe_load((CONFIGS / "fleet.yaml").read_text())
    values["model"].update(target=target, drafter=drafter)
    return values


def pool_named(values: dict[str, Any], name: str) -> dict[str, Any]:
    pool: dict[str, Any] = next(pool for pool in values["pools"] if pool["name"] == name)
    return pool
