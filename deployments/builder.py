"""The app builder: everything that can be wrong without a GPU is wrong here, before anything is deployed."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from ray import serve
from ray.serve import Application
from ray.serve.config import AutoscalingConfig
from ray.serve.schema import LoggingConfig

from deployments.config import AppConfig
from deployments.errors import AppError
from deployments.ingress import Ingress
from deployments.loading import load_config
from deployments.local_ray import stay_local
from deployments.pair import inputs_for, read_pair
from deployments.replica import Replica
from deployments.sizing import PoolSizing, size_pool
from hybrid_serve.facts.catalogue import gpu
from hybrid_serve.facts.device import DeviceFacts
from hybrid_serve.facts.errors import FactsError
from hybrid_serve.facts.probe import measure_device
from hybrid_serve.negotiation.book import REPORT_PERIOD_S
from hybrid_serve.plan.decide import decide
from hybrid_serve.plan.inputs import PlanInputs
from hybrid_serve.plan.verdict import Impossible

# Ray Serve's own switches, set for our replicas only: user code and router on the replica's one event loop, so that
# a chunk changes threads nowhere on its way.
_ONE_LOOP = {"RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0", "RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP": "0"}


class AppArgs(BaseModel):
    """Arguments of the app: `serve run deployments:app config=FILE key=value ...`.

    Further keys are overrides of the configuration, see `deployments.loading.load_config`.
    """

    model_config = ConfigDict(extra="allow")

    config: str | None = Field(None, description="A configuration file; default: the demo's.")


def app(args: AppArgs) -> Application:
    """Build the app. Where no Ray runs, the one that `serve run` then starts is kept to this machine.

    Raises:
        AppError: the configuration, a path, the pair or the memory is wrong; the message says what to change.
    """
    stay_local()
    return build(load_config(args.config, args.model_extra))


def build(config: AppConfig) -> Application:
    """The pool and the ingress of a configuration, sized by the plan.

    Raises:
        AppError: the pair does not fit together, or no plan fits the device; the message says what to change.
    """
    device, known = pool_device(config)
    config = config.model_copy(update={"pool": config.pool.model_copy(update={"device": device.kind})})
    try:
        inputs = inputs_for(config, read_pair(config, device.kind), device)
    except FactsError as error:
        raise AppError(str(error)) from None
    sizing = _sizing(config, inputs, known)
    pool = serve.deployment(Replica).options(name=config.pool.name, **_pool_options(config, sizing))
    ingress = serve.deployment(serve.ingress()(Ingress)).options(name="ingress", **_ingress_options(config))
    check_model = not any("lora" in name for name in config.engine.vllm_args)
    return ingress.bind(pool.bind(config), str(config.model.name), check_model)


def pool_device(config: AppConfig) -> tuple[DeviceFacts, bool]:
    """The device that the pool's replicas will have, as far as it is known here: measured, or the catalogue's.

    The second value is False if this is a guess: then nothing but the replica itself can refuse for want of memory.
    """
    pool = config.pool
    try:
        if pool.accelerator_type is not None:
            return gpu(pool.accelerator_type), True
        if pool.device != "cuda":
            return measure_device(pool.device), True
        try:
            return measure_device("cuda"), True
        except FactsError:
            return gpu("H200"), False
    except FactsError as error:
        raise AppError(str(error)) from None


def _sizing(config: AppConfig, inputs: PlanInputs, known: bool) -> PoolSizing:
    chosen = decide(inputs, config.engine.policy).chosen
    if not isinstance(chosen, Impossible):
        return size_pool(chosen.plan, inputs, config.pool)
    if known:
        raise AppError(_sentence(chosen))
    limit = config.engine.max_num_seqs
    return PoolSizing(concurrency=limit, target_ongoing_requests=0.8 * limit, max_ongoing_requests=limit)


def _sentence(chosen: Impossible) -> str:
    text = f"no KV plan fits: {chosen.reason}\nwhat to change: {chosen.remedy}"
    if chosen.max_model_len:
        text += f"\nthe largest engine.max_model_len that fits is {chosen.max_model_len}"
    return text


def _pool_options(config: AppConfig, sizing: PoolSizing) -> dict[str, Any]:
    pool = config.pool
    gpus = pool.num_gpus
    if gpus is None:
        gpus = config.engine.tensor_parallel_size if pool.device == "cuda" else 0
    actor: dict[str, Any] = {"num_cpus": pool.num_cpus, "num_gpus": gpus}
    actor["runtime_env"] = {"env_vars": {**_ONE_LOOP, **pool.env}}
    if pool.resources:
        actor["resources"] = pool.resources
    if pool.accelerator_type is not None:
        actor["accelerator_type"] = pool.accelerator_type
    return {
        "ray_actor_options": actor,
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


def _ingress_options(config: AppConfig) -> dict[str, Any]:
    return {
        "ray_actor_options": {"num_cpus": config.ingress.num_cpus, "runtime_env": {"env_vars": _ONE_LOOP}},
        "num_replicas": config.ingress.num_replicas,
        "max_ongoing_requests": config.ingress.max_ongoing_requests,
        "logging_config": LoggingConfig(enable_access_log=config.ingress.access_log),
        "user_config": {
            "max_body": config.limits.max_body,
            "request_timeout_s": config.limits.request_timeout_s,
        },
    }
