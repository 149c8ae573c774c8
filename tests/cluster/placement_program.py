"""Where the options of each pool of a configuration put a replica, on Ray nodes that are labelled as unlike GPUs.

`python -m tests.cluster.placement_program CONFIG ...` prints, as one line of JSON for each configuration, what a
stand-in with each pool's own actor options finds where it runs: node labels, GPUs, and whether it is in a placement
group. In a process of its own, since a process has one Ray.
"""

import json
import sys
from typing import Any

import ray
from ray import serve
from ray.cluster_utils import Cluster
from ray.serve.config import HTTPOptions
from ray.util import get_current_placement_group

from deployments.deployment_options import ACCELERATOR_LABEL, actor_options
from deployments.loading import load_config
from deployments.local_haproxy import free_port
from deployments.local_ray import stay_local

NODES = (("H20", 1), ("H200", 1), ("L40S", 2), ("L40S", 2), ("L40S", 4))
"""Label and GPUs, as Ray is told; there is none in this machine."""


class Probe:
    """Stands where a replica would."""

    def where(self) -> dict[str, Any]:
        context = ray.get_runtime_context()
        return {
            "accelerator": context.get_node_labels().get(ACCELERATOR_LABEL),
            "node_gpus": next(
                node["Resources"].get("GPU", 0) for node in ray.nodes() if node["NodeID"] == context.get_node_id()
            ),
            "gpus": len(ray.get_gpu_ids()),
            "in_placement_group": get_current_placement_group() is not None,
        }


def main(config_files: list[str]) -> None:
    stay_local()
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        for label, gpus in NODES:
            cluster.add_node(num_cpus=8, num_gpus=gpus, labels={ACCELERATOR_LABEL: label})
        ray.init(address=cluster.address, namespace="serve", log_to_driver=False)
        serve.start(proxy_location="HeadOnly", http_options=HTTPOptions(host="127.0.0.1", port=free_port()))
        for file in config_files:
            print(json.dumps(placed(file)), flush=True)
        serve.shutdown()
    finally:
        ray.shutdown()
        cluster.shutdown()


def placed(config_file: str) -> dict[str, Any]:
    """Pool name -> what a replica of the pool finds."""
    pools = [one for served in load_config(config_file).served for one in served.served_pools]
    names = [one.pool.name for one in pools]
    for one in pools:
        options = actor_options(one.pool, one.engine.tensor_parallel_size) | {"num_cpus": 0.1}
        probe = serve.deployment(Probe).options(name=one.pool.name, ray_actor_options=options).bind()
        serve._run(probe, name=one.pool.name, route_prefix=None, _blocking=False)
    found = {name: serve.get_app_handle(name).where.remote().result(timeout_s=60) for name in names}
    for name in names:
        serve.delete(name)
    return found


if __name__ == "__main__":
    main(sys.argv[1:])
