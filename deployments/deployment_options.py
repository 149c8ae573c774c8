"""What Ray Serve is told about each deployment: resources, placement, bounds."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ray._private.accelerators.nvidia_gpu import NvidiaGPUAcceleratorManager
from ray.serve.config import RequestRouterConfig
from ray.serve.schema import LoggingConfig

from deployments.autoscaling.options import facts_of, ingress_autoscaling, pool_autoscaling
from deployments.config import AppConfig, ReplicaConfig
from deployments.fleet import BoundPool
from deployments.generation import placement_digest
from deployments.limits import limits_of
from deployments.pool_config import PoolConfig
from hybrid_serve.facts.catalogue import gpu
from hybrid_serve.negotiation.book import REPORT_PERIOD_S

ACCELERATOR_LABEL = "ray.io/accelerator-type"
"""Label that Ray gives each node that has an accelerator."""

PLACEMENT = "HYBRID_SERVE_PLACEMENT"
"""Environment variable of replicas: digest of what only a new replica can have."""

# Ray Serve's own switches, set for our replicas only: user code and router on the replica's one event loop, so that
# a chunk changes threads nowhere on its way.
_ONE_LOOP = {"RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0", "RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP": "0"}


def pool_options(planned: BoundPool, pools: Sequence[BoundPool], config: AppConfig) -> dict[str, Any]:
    """Options of one pool's deployment. `pools` are all of its model's."""
    pool, sizing, scaling = planned.config.pool, planned.sizing, config.scaling
    return {
        "name": pool.name,
        "ray_actor_options": pool_actor_options(planned.config),
        "max_ongoing_requests": sizing.max_ongoing_requests,
        "request_router_config": RequestRouterConfig(
            request_router_class="deployments.routing.router.CapacityRouter",
            request_router_kwargs={"model": planned.config.model.name},
            request_routing_stats_period_s=config.routing.stats_period_s,
        ),
        "autoscaling_config": pool_autoscaling(
            pool.name,
            [facts_of(one, scaling.utilisation) for one in pools],
            utilisation=scaling.utilisation,
            margin=scaling.margin,
            start_patience_s=scaling.start_patience_s,
            min_replicas=pool.min_replicas,
            max_replicas=pool.max_replicas,
            target_ongoing_requests=sizing.target_ongoing_requests,
            upscale_delay_s=pool.upscale_delay_s,
            downscale_delay_s=pool.downscale_delay_s,
            generation=planned.config.generation,
        ),
        "max_constructor_retry_count": pool.start_attempts,
        "graceful_shutdown_timeout_s": pool.graceful_shutdown_timeout_s,
        "health_check_period_s": pool.health_check_period_s,
        "user_config": {"report_period_s": REPORT_PERIOD_S},
        "logging_config": LoggingConfig(enable_access_log=False),
    }


def pool_actor_options(config: ReplicaConfig) -> dict[str, Any]:
    """Resources and placement of one replica, with the digest of all that is fixed with them.

    Ray Serve replaces the replicas of a pool whose digest changes, also where nothing else that it looks at does:
    another vLLM on the nodes, say.
    """
    options = actor_options(config.pool, config.engine.tensor_parallel_size)
    options["runtime_env"]["env_vars"][PLACEMENT] = placement_digest(config)
    return options


def actor_options(pool: PoolConfig, tensor_parallel_size: int) -> dict[str, Any]:
    """Resources and placement of one replica.

    A replica is one actor that holds all of its GPUs, so they are of one node. vLLM starts its workers as children of
    that actor: it takes its own multiprocessing executor as long as the actor is in no placement group (vLLM 0.29.0,
    config/parallel.py), so a pool has none.
    """
    gpus = pool.num_gpus
    if gpus is None:
        gpus = tensor_parallel_size if pool.device == "cuda" else 0
    runtime_env: dict[str, Any] = {"env_vars": {**_ONE_LOOP, **pool.env}}
    if pool.image_uri is not None:
        runtime_env["image_uri"] = pool.image_uri
    options: dict[str, Any] = {"num_cpus": pool.num_cpus, "num_gpus": gpus, "runtime_env": runtime_env}
    if pool.resources:
        options["resources"] = pool.resources
    if labels := label_selector(pool):
        options["label_selector"] = labels
    return options


def label_selector(pool: PoolConfig) -> dict[str, str]:
    """Node labels that a pool's replicas need.

    Ray makes the label of the driver's name, and drops what tells some cards apart: `NVIDIA H20-3e` is labelled H20.
    """
    if pool.accelerator_type is None:
        return pool.label_selector
    driver_name = gpu(pool.accelerator_type).name
    label = NvidiaGPUAcceleratorManager._gpu_name_to_accelerator_type(driver_name)
    return {ACCELERATOR_LABEL: label or pool.accelerator_type, **pool.label_selector}


def ingress_options(
    config: AppConfig, services: Mapping[str, Sequence[str]], *, check_model: bool, generation: str
) -> dict[str, Any]:
    """Options of the ingress's deployment. `services`: model name -> names of its pools."""
    return {
        "ray_actor_options": ingress_actor_options(config),
        "autoscaling_config": ingress_autoscaling(config.ingress.num_replicas, generation),
        "max_ongoing_requests": config.ingress.max_ongoing_requests,
        "logging_config": LoggingConfig(enable_access_log=config.ingress.access_log),
        "user_config": {
            "limits": asdict(limits_of(config)),
            "services": {model: list(pools) for model, pools in services.items()},
            "check_model": check_model,
        },
    }


def ingress_actor_options(config: AppConfig) -> dict[str, Any]:
    """Resources of one ingress replica."""
    return {"num_cpus": config.ingress.num_cpus, "runtime_env": {"env_vars": dict(_ONE_LOOP)}}
