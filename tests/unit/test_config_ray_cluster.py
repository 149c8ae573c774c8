"""The cluster file is what Ray's launcher takes, and offers what the GPU configuration asks for."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import ray.autoscaler
import yaml
from ray.autoscaler._private.util import validate_config

from deployments.loading import load_config

ROOT = Path(__file__).parents[2]
GPU_CONFIG = ROOT / "configs" / "qwen3.5-35b-a3b-h200.yaml"


@pytest.fixture
def cluster() -> dict[str, Any]:
    values: dict[str, Any] = yaml.safe_load((ROOT / "ray_cluster.yaml").read_text())
    return values


def test_it_is_valid_by_rays_own_schema(cluster: dict[str, Any]) -> None:
    """`cluster_synced_files` is what `ray up` itself adds before it validates."""
    validate_config({**cluster, "cluster_synced_files": []})


def test_the_schema_would_notice_a_wrong_key(cluster: dict[str, Any]) -> None:
    schema = json.loads((Path(ray.autoscaler.__file__).parent / "ray-schema.json").read_text())
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**cluster, "max_wrokers": 3}, schema)


def test_its_workers_have_what_a_replica_asks_for(cluster: dict[str, Any]) -> None:
    pool = load_config(GPU_CONFIG).pool
    workers = [kind for kind in cluster["available_node_types"] if kind != cluster["head_node_type"]]
    (resources,) = [cluster["available_node_types"][kind]["resources"] for kind in workers]
    replicas = min(resources["GPU"], resources["CPU"] // pool.num_cpus)
    assert f"accelerator_type:{pool.accelerator_type}" in resources
    assert replicas * cluster["max_workers"] >= pool.max_replicas


def test_every_node_talks_to_the_ingress_the_same_way(cluster: dict[str, Any]) -> None:
    for commands in ("head_start_ray_commands", "worker_start_ray_commands"):
        assert "RAY_SERVE_PROXY_USE_GRPC=1" in cluster[commands][-1]
