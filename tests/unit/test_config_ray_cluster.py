"""The files for Ray's cluster launcher are what it takes, and bring what the pools of the fleet ask for."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import jsonschema
import pytest
import yaml
from ray._private.accelerators.nvidia_gpu import NvidiaGPUAcceleratorManager
from ray._private.label_utils import parse_node_labels_string

from deployments.config import PoolConfig
from deployments.loading import load_config
from hybrid_serve.facts.catalogue import GPUS
from tests.autoscaler import LABEL, launcher_config, pools_of, started_for

ROOT = Path(__file__).parents[2]
POOLS = pools_of(load_config(ROOT / "configs" / "fleet.yaml"))


def values_of(name: str) -> dict[str, Any]:
    values: dict[str, Any] = yaml.safe_load((ROOT / name).read_text())
    return values


@pytest.fixture
def cluster() -> dict[str, Any]:
    return values_of("ray_cluster.yaml")


@pytest.fixture
def on_premise() -> dict[str, Any]:
    return values_of("deploy/on_premise.yaml")


@pytest.mark.parametrize("name", ["ray_cluster.yaml", "deploy/on_premise.yaml"])
def test_it_is_valid_by_rays_own_schema(name: str) -> None:
    launcher_config(values_of(name))


MISTAKES: dict[str, Callable[[dict[str, Any]], object]] = {
    "a misspelt key": lambda c: c.update(max_wrokers=3),
    "a misspelt key of a node type": lambda c: c["available_node_types"]["h20"].update(label={}),
    "resources as text": lambda c: c["available_node_types"]["h20"]["resources"].update(GPU="8"),
    "a label that is no text": lambda c: c["available_node_types"]["h20"]["labels"].update({LABEL: 20}),
    "a node type without resources": lambda c: c["available_node_types"]["l40s"].pop("resources"),
    "no provider type": lambda c: c["provider"].pop("type"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_rays_schema_refuses(mistake: str, cluster: dict[str, Any]) -> None:
    MISTAKES[mistake](cluster)
    with pytest.raises((jsonschema.ValidationError, KeyError)):
        launcher_config(cluster)


def test_machines_of_ones_own_have_no_node_types(on_premise: dict[str, Any], cluster: dict[str, Any]) -> None:
    on_premise["available_node_types"] = cluster["available_node_types"]
    with pytest.raises(click.ClickException):
        launcher_config(on_premise)


def test_machines_of_ones_own_all_stay_in_the_cluster(on_premise: dict[str, Any]) -> None:
    del on_premise["auth"]["ssh_private_key"]  # Ray reads the file; there is none here.
    (machines,) = launcher_config(on_premise).get_node_type_configs().values()
    # One more may be: the head.
    assert machines.min_worker_nodes == machines.max_worker_nodes - 1 == len(on_premise["provider"]["worker_ips"])


@pytest.mark.parametrize("name", POOLS)
def test_a_pool_at_its_largest_starts_its_own_node_type_and_fits(name: str, cluster: dict[str, Any]) -> None:
    pool, replica = POOLS[name]
    started = started_for(launcher_config(cluster), replica, pool.accelerator_type, pool.max_replicas)
    assert started.nodes.keys() == {name} and started.waiting == 0


def test_without_its_label_a_node_type_is_not_started(cluster: dict[str, Any]) -> None:
    pool, replica = POOLS["h20"]
    del cluster["available_node_types"]["h20"]["labels"]
    started = started_for(launcher_config(cluster), replica, pool.accelerator_type, pool.min_replicas or 1)
    assert started.waiting and "h20" not in started.nodes


def test_a_whole_fleet_fits_at_once(cluster: dict[str, Any]) -> None:
    types = cluster["available_node_types"]
    assert cluster["max_workers"] >= sum(kind.get("max_workers", 0) for kind in types.values())


def test_a_node_outlives_the_quiet_between_two_peaks(cluster: dict[str, Any]) -> None:
    pools: list[PoolConfig] = [pool for pool, _ in POOLS.values()]
    assert cluster["idle_timeout_minutes"] * 60 > max(pool.downscale_delay_s for pool in pools)


@pytest.mark.parametrize("name", POOLS)
def test_a_node_type_is_labelled_as_ray_labels_its_cards(name: str, cluster: dict[str, Any]) -> None:
    driver_name, *_ = GPUS[POOLS[name][0].accelerator_type or ""]
    label = NvidiaGPUAcceleratorManager._gpu_name_to_accelerator_type(driver_name)
    assert cluster["available_node_types"][name]["labels"] == {LABEL: label}


def test_ray_gives_both_kinds_of_h20_one_label_and_takes_another_by_hand() -> None:
    named = NvidiaGPUAcceleratorManager._gpu_name_to_accelerator_type
    assert named(GPUS["H20"][0]) == named(GPUS["H20-3e"][0]) == "H20"
    assert parse_node_labels_string(f"{LABEL}=H20-3e") == {LABEL: "H20-3e"}


@pytest.mark.parametrize("name", ["ray_cluster.yaml", "deploy/on_premise.yaml"])
def test_every_node_talks_to_the_others_the_same_way(name: str) -> None:
    values = values_of(name)
    for commands in ("head_start_ray_commands", "worker_start_ray_commands"):
        assert "RAY_AUTH_MODE=token RAY_SERVE_PROXY_USE_GRPC=1 .venv/bin/ray start" in values[commands][-1]
    assert values["file_mounts"]["/home/ubuntu/.ray/auth_token"] == "~/.ray/auth_token"


def test_what_is_not_known_here_is_marked(cluster: dict[str, Any]) -> None:
    """AWS rents no H20, and an AMI belongs to a region and a day."""
    types = cluster["available_node_types"]
    assert types["h20"]["node_config"]["InstanceType"].startswith("replace-me")
    assert all(kind["node_config"]["ImageId"].startswith("replace-me") for kind in types.values())
