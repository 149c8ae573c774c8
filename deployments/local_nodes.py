"""Ray nodes on this machine for a configuration whose CPU pools ask for labelled nodes: a fleet to try."""

from math import ceil

from deployments.config import AppConfig
from deployments.local_ray import LocalNode


def local_nodes(config: AppConfig) -> dict[str, LocalNode]:
    """Pool name -> the node that its replicas can be placed on, for every CPU pool with a `label_selector`."""
    return {
        pool.name: LocalNode(labels=dict(pool.label_selector), num_cpus=ceil(pool.max_replicas * pool.num_cpus) or 1)
        for served in config.served
        for pool in served.pools
        if pool.device == "cpu" and pool.label_selector
    }
