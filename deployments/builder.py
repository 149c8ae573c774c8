"""The app builder: everything that can be wrong without a GPU is wrong here, before anything is deployed."""

from pydantic import BaseModel, ConfigDict, Field
from ray import serve
from ray.serve import Application

from deployments.config import AppConfig
from deployments.deployment_options import ingress_options, pool_options
from deployments.errors import AppError
from deployments.fleet import PlannedModel, PlannedPool, plan_model
from deployments.ingress import Ingress
from deployments.loading import load_config
from deployments.local_ray import stay_local
from deployments.pool_config import INGRESS
from deployments.replica import Replica


class AppArgs(BaseModel):
    """Arguments of the app: `serve run deployments:app config=FILE key=value ...`.

    Further keys are overrides of the configuration, see `deployments.overrides.apply_overrides`.
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
    """One ingress in front of a deployment for each pool of each model, sized by the pools' plans.

    Raises:
        AppError: what is wrong with any of the pools, all of it at once: the pair does not fit together, no plan fits
            the device; the message names the pools and says what to change.
    """
    models = [plan_model(served) for served in config.served]
    if told := [_told(problem, model, models) for model in models for problem in model.problems]:
        raise AppError(told[0] if len(told) == 1 else f"{len(told)} problems:\n" + "\n".join(f"- {t}" for t in told))
    services = {model.name: {pool.name: _deployment(pool, config) for pool in model.pools} for model in models}
    arguments = [pool.config.engine.vllm_args for model in models for pool in model.pools]
    check_model = not any("lora" in name for names in arguments for name in names)
    ingress = serve.deployment(serve.ingress()(Ingress)).options(name=INGRESS, **ingress_options(config))
    return ingress.bind(services, check_model)


def _told(problem: object, model: PlannedModel, models: list[PlannedModel]) -> str:
    return str(problem) if len(models) == 1 else f"model {model.name}, {problem}"


def _deployment(pool: PlannedPool, config: AppConfig) -> Application:
    return serve.deployment(Replica).options(**pool_options(pool, config)).bind(pool.config)
