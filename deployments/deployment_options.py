"""What Ray Serve is told about each deployment: resources, placement, bounds."""

from typing import Any

from ray._private.accelerators.nvidia_gpu import NvidiaGPUAcceleratorManager
from ray.serve.config import AutoscalingConfig
from ray.serve.schema import LoggingConfig

from deployments.config import AppConfig
from deployments.fleet import PlannedPool
from deployments.pool_config import PoolConfig
from hybrid_serve.facts.catalogue import gpu
from hybrid_serve.negotiation.book import REPORT_PERIOD_S

ACCELERATOR_LABEL = "ray.io/accelerator-type"
"""Label that Ray gives each node that has an accelerator."""

# Ray Serve's own switches, set for our replicas only: user code and router on the replica's one event loop, so that
# a chunk changes threads nowhere on its way.
_ONE_LOOP = {"RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0", "RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP": "0"}


def pool_options(planned: PlannedPool, config: AppConfig) -> dict[str, Any]:
    """Options of one pool's deployment."""
    pool, sizing = planned.config.pool, planned.sizing
    return {
        "name": pool.name,
        "ray_actor_options": actor_options(pool, planned.inputs.settings.tensor_parallel_size),
        "max_ongoing_requests": sizing.max_ongoing_requests,
        "max_queued_requests": config.limits.max_queued_requests,
        "autoscaling_config": AutoscalingConfig(
            min_replicas=pool.min_replicas,
            max_replicas=pool.max_replicas,
            target_ongoing_requests=sizing.target_ongoing_requests,
            upscale_delay_s=pool.upscale_delay_s,
            downscale_delay_s=pool.downscale_delay_s,
        ),
        "max_constructor_retry_count": pool.start_attempts,
        "graceful_shutdown_timeout_s": pool.graceful_shutdown_timeout_s,
        "health_check_period_s": pool.health_check_period_s,
        "user_config": {"report_period_s": REPORT_PERIOD_S},
        "logging_config": LoggingConfig(enable_access_log=False),
    }


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


def ingress_options(config: AppConfig) -> dict[str, Any]:
    """Options of the ingress's deployment."""
    limits = config.limits
    return {
        "ray_actor_options": {"num_cpus": config.ingress.num_cpus, "runtime_env": {"env_vars": _ONE_LOOP}},
        "num_replicas": config.ingress.num_replicas,
        "max_ongoing_requests": config.ingress.max_ongoing_requests,
        "logging_config": LoggingConfig(enable_access_log=config.ingress.access_log),
        "user_config": {
            "max_body": limits.max_body,
            "request_timeout_s": limits.request_timeout_s,
            "max_queued_requests": limits.max_queued_requests,
            "max_queue_s": limits.max_queue_s,
            "retries": limits.retries,
            "sticky_margin": config.routing.sticky_margin,
        },
    }
