"""Several pools, and several models, deployed for real: what their replicas are planned and run with."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import ray

from deployments.config import AppConfig
from hybrid_serve.negotiation.planner import ACTOR_NAME, NAMESPACE
from tests.cluster.conftest import until
from tests.demo_app import app_values

pytestmark = pytest.mark.cluster

MEMORY = {"small": "9MiB", "middle": "48MiB", "large": "96MiB"}


def three_pools(folder: Path, **engine: Any) -> dict[str, Any]:
    values = app_values(folder, **engine)
    del values["pool"], values["engine"]["kv_memory"]
    values["pools"] = [
        {"name": name, "device": "cpu", "num_cpus": 0.1, "kv_memory": size} for name, size in MEMORY.items()
    ]
    return values


def running(pools: set[str]) -> dict[str, dict[str, Any]]:
    """The planner's entries of these pools, once all of their engines run."""

    def look() -> dict[str, dict[str, Any]] | None:
        status = ray.get(ray.get_actor(ACTOR_NAME, NAMESPACE).status.remote(), timeout=20)
        found = {entry["pool"]: entry for entry in status["replicas"] if entry["pool"] in pools}
        return found if set(found) == pools and all(entry["report"] for entry in found.values()) else None

    entries: dict[str, dict[str, Any]] = until(look)
    return entries


def test_each_pool_runs_its_own_plan_under_one_length(pair_folder: Path, deployed: Callable[[AppConfig], Any]) -> None:
    config = AppConfig.model_validate(three_pools(pair_folder, max_model_len="fleet"))
    with deployed(config):
        entries = running(set(MEMORY))
    for entry in entries.values():
        assert entry["state"] == "running" and entry["differences"] == []
        assert entry["report"]["num_blocks"] == entry["predicted_num_blocks"]
    blocks = {name: entry["predicted_num_blocks"] for name, entry in entries.items()}
    assert blocks["small"] < blocks["middle"] < blocks["large"]
    (length,) = {entry["plan"]["max_model_len"] for entry in entries.values()}
    assert 512 < length < 4096, "what the smallest pool holds"


def test_several_models_are_planned_side_by_side(pair_folder: Path, deployed: Callable[[AppConfig], Any]) -> None:
    one, other = app_values(pair_folder), app_values(pair_folder, num_speculative_tokens=3)
    one["model"]["name"], other["model"]["name"] = "one", "other"
    one["pool"]["name"], other["pool"]["name"] = "of-one", "of-other"
    with deployed(AppConfig.model_validate({"models": [one, other]})):
        entries = running({"of-one", "of-other"})
    assert {entry["model_name"] for entry in entries.values()} == {"one", "other"}
    assert len({entry["plan_id"] for entry in entries.values()}) == 2
