"""The app builder: everything that can be wrong without a GPU is wrong here, before anything is deployed."""

import hashlib
import json

from pydantic import BaseModel, ConfigDict, Field
from ray import serve
from ray.serve import Application

from deployments.binding import recall
from deployments.config import AppConfig
from deployments.deployment_options import ingress_options, pool_options
from deployments.errors import AppError
from deployments.generation import BoundModel, Problems, bound_models, config_of, offer_of
from deployments.ingress import Ingress
from deployments.loading import load_config
from deployments.local_ray import stay_local
from deployments.pool_config import INGRESS
from deployments.replica import Replica
from hybrid_serve.rollout.wire import GenerationOffer


class AppArgs(BaseModel):
    """Arguments of the app: `serve run deployments:app config=FILE key=value ...`.

    Further keys are overrides of the configuration, see `deployments.overrides.apply_overrides`.
    """

    model_config = ConfigDict(extra="allow")

    config: str | None = Field(None, description="A configuration file; default: the demo's.")


def app(args: AppArgs) -> Application:
    """Build the app. Where no Ray runs, the one that `serve run` then starts is kept to this machine.

    `serve deploy` of a file whose arguments are as before means what was rolled out over them since: to Ray Serve, too,
    the same arguments are the same app, and it asks again only because a rollout came between (`deployments.applying`).

    Raises:
        AppError: the configuration, a path, the pair or the memory is wrong; the message says what to change.
    """
    stay_local()
    origin = hashlib.sha256(json.dumps(args.model_dump(mode="json"), sort_keys=True).encode()).hexdigest()[:16]
    rolled_out = recall(origin)
    if rolled_out is not None:
        return application_of(rolled_out, by_rollout=True, origin=origin)
    return build(load_config(args.config, args.model_extra), origin)


def build(config: AppConfig, origin: str = "") -> Application:
    """One ingress in front of a deployment for each pool of each model, sized by the pools' plans.

    `origin`: digest of the arguments that the configuration was read by; empty without.

    Raises:
        AppError: what is wrong with any of the pools, all of it at once: the pair does not fit together, no plan fits
            the device; the message names the pools and says what to change.
    """
    offer = offer_of(config, app="")
    if isinstance(offer, Problems):
        raise AppError(str(offer))
    return application_of(offer, origin=origin)


def application_of(offer: GenerationOffer, *, by_rollout: bool = False, origin: str = "") -> Application:
    """A generation as Ray Serve takes it. Nothing is planned anew and no file is read.

    `by_rollout`: the planner had it deployed, and need not be told. `origin`: as for `build`.
    """
    config, models = config_of(offer), bound_models(offer)
    services = {
        model.name: {
            pool.name: serve.deployment(Replica).options(**pool_options(pool, model.pools, config)).bind(pool.config)
            for pool in model.pools
        }
        for model in models
    }
    options = ingress_options(config, _pool_names(models), check_model=_checks_model(models), generation=offer.digest)
    ingress = serve.deployment(serve.ingress()(Ingress)).options(name=INGRESS, **options)
    return ingress.bind(services, _checks_model(models), offer=offer, by_rollout=by_rollout, origin=origin)


def _pool_names(models: tuple[BoundModel, ...]) -> dict[str, list[str]]:
    return {model.name: [pool.name for pool in model.pools] for model in models}


def _checks_model(models: tuple[BoundModel, ...]) -> bool:
    """With LoRA adapters vLLM knows more model names than the configuration."""
    arguments = [pool.config.engine.vllm_args for model in models for pool in model.pools]
    return not any("lora" in name for names in arguments for name in names)
