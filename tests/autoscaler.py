"""What Ray's own autoscaler would start for the pools of a configuration: its scheduler, asked without a cluster."""

from dataclasses import dataclass
from typing import Any

from ray.autoscaler.v2.instance_manager.config import AutoscalingConfig
from ray.autoscaler.v2.scheduler import ResourceDemandScheduler, SchedulingRequest
from ray.autoscaler.v2.utils import ResourceRequestUtil
from ray.core.generated.common_pb2 import LabelSelectorOperator

from deployments.config import AppConfig, PoolConfig

LABEL = "ray.io/accelerator-type"


@dataclass(frozen=True, kw_only=True)
class Started:
    """Nodes by type, and how many replicas would wait for ever."""

    nodes: dict[str, int]
    waiting: int


def launcher_config(values: dict[str, Any]) -> AutoscalingConfig:
    """As `ray up` and the autoscaler read it: defaults filled in, then validated by Ray's schema.

    Raises:
        jsonschema.ValidationError, ValueError, click.ClickException: what Ray says of a wrong one.
    """
    return AutoscalingConfig(values, skip_content_hash=True)


def started_for(config: AutoscalingConfig, replica: dict[str, float], kind: str | None, replicas: int) -> Started:
    """What an idle cluster would start for `replicas` that each need the resources `replica` and the label `kind`."""
    selector = [[(LABEL, LabelSelectorOperator.LABEL_OPERATOR_IN, [kind])]] if kind else None
    request = ResourceRequestUtil.make(replica, label_selectors=selector)
    reply = ResourceDemandScheduler().schedule(
        SchedulingRequest(
            disable_launch_config_check=True,
            node_type_configs=config.get_node_type_configs(),
            max_num_nodes=config.get_max_num_nodes(),
            resource_requests=ResourceRequestUtil.group_by_count([request] * replicas),
        )
    )
    return Started(
        nodes={launch.instance_type: launch.count for launch in reply.to_launch},
        waiting=len(reply.infeasible_resource_requests),
    )


def pools_of(config: AppConfig) -> dict[str, tuple[PoolConfig, dict[str, float]]]:
    """Each pool by name, and what Ray reserves for one replica of it."""
    found = {}
    for served in config.served:
        for place in served.served_pools:
            gpus = place.pool.num_gpus or place.engine.tensor_parallel_size
            found[place.pool.name] = (place.pool, {"CPU": place.pool.num_cpus, "GPU": float(gpus)})
    return found
