"""The app builder: everything that can be wrong without a GPU is wrong here, before anything is deployed."""

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
    app: str | None = Field(
        None,
        description="Ray Serve's name of this app, in a file that says in the ingress's user_config what is desired "
        "(`deployments.serve_file`): what was rolled out last is built again, and `config` only where nothing was.",
    )


def app(args: AppArgs) -> Application:
    """Build the app. Where no Ray runs, the one that `serve run` then starts is kept to this machine.

    Raises:
        AppError: the configuration, a path, the pair or the memory is wrong; the message says what to change.
    """
    stay_local()
    if args.app is not None and (running := recall(args.app)) is not None:
        return application_of(running, by_rollout=True)
    return build(load_config(args.config, args.model_extra))


def build(config: AppConfig) -> Application:
    """One ingress in front of a deployment for each pool of each model, sized by the pools' plans.

    Raises:
        AppError: what is wrong with any of the pools, all of it at once: the pair does not fit together, no plan fits
            the device; the message names the pools and says what to change.
    """
    offer = offer_of(config, app="")
    if isinstance(offer, Problems):
        raise AppError(str(offer))
    return application_of(offer)


def application_of(offer: GenerationOffer, *, by_rollout: bool = False) -> Application:
    """A generation as Ray Serve takes it. Nothing is planned anew and no file is read.

    `by_rollout`: the planner had it deployed, and need not be told.
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
    return ingress.bind(services, _checks_model(models), offer=offer, by_rollout=by_rollout)


def _pool_names(models: tuple[BoundModel, ...]) -> dict[str, list[str]]:
    return {model.name: [pool.name for pool in model.pools] for model in models}


def _checks_model(models: tuple[BoundModel, ...]) -> bool:
    """With LoRA adapters vLLM knows more model names than the configuration."""
    arguments = [pool.config.engine.vllm_args for model in models for pool in model.pools]
    return not any("lora" in name for names in arguments for name in names)
