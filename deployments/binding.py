"""What Ray Serve starts newcomers of an app with, and what was last rolled out there.

The controller is asked over its own actor methods, as Ray Serve's client does it (checked with Ray 2.60).
"""

import logging
import pickle
from dataclasses import dataclass
from typing import Any

import ray
from ray.experimental.internal_kv import (
    _internal_kv_del,
    _internal_kv_get,
    _internal_kv_put,
)
from ray.serve._private.deployment_info import DeploymentInfo
from ray.serve.config import AutoscalingConfig
from ray.serve.context import _get_global_client
from ray.serve.generated.serve_pb2 import DeploymentRoute

from deployments.built_app import app_being_built
from deployments.pool_config import INGRESS
from hybrid_serve.negotiation.store import NAMESPACE
from hybrid_serve.rollout.ledger import rolled_out_key
from hybrid_serve.rollout.wire import GenerationOffer

logger = logging.getLogger("ray.serve")

TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Binding:
    """One deployment as Ray Serve has it now.

    Attributes:
        version: replicas of one version are not restarted for each other's sake.
        route: of the ingress; None for pools.
    """

    info: DeploymentInfo
    route: str | None

    @property
    def version(self) -> str:
        return str(self.info.version)

    @property
    def actor_options(self) -> dict[str, Any]:
        options: dict[str, Any] = self.info.replica_config.ray_actor_options
        return options

    @property
    def arguments(self) -> tuple[Any, ...]:
        """What a replica of it is made with."""
        return tuple(self.info.replica_config.init_args or ())

    @property
    def options(self) -> dict[str, Any]:
        """What a replica of it is made with, by name."""
        return dict(self.info.replica_config.init_kwargs or {})

    @property
    def generation(self) -> str:
        """Digest of the generation that it was deployed with; empty for another app's."""
        return generation_in(self.info.deployment_config.autoscaling_config)


def generation_in(scaling: AutoscalingConfig | None) -> str:
    """The digest that our policies are told (`deployments.autoscaling.policy`); empty for another's policy."""
    return "" if scaling is None else str(scaling.policy.policy_kwargs.get("generation", ""))


def bindings_of(app: str) -> dict[str, Binding]:
    """Every deployment of an app, by name; empty if there is no such app.

    Raises:
        Exception: whatever Ray raises if Ray Serve can't be reached.
    """
    controller = _get_global_client()._controller
    listed = ray.get(controller.list_deployments_internal.remote(), timeout=TIMEOUT_S)
    return {one.name: Binding(info, route) for one, (info, route) in listed.items() if one.app_name == app and info}


@dataclass(frozen=True)
class BoundGeneration:
    """What an ingress that starts now is told that it belongs to."""

    offer: GenerationOffer
    by_rollout: bool


def bound_generation(app: str) -> BoundGeneration | None:
    """What Ray Serve binds new ingress replicas with; None if nothing is deployed. Raises as `bindings_of`."""
    controller = _get_global_client()._controller
    try:
        told = ray.get(controller.get_deployment_info.remote(INGRESS, app), timeout=TIMEOUT_S)
    except KeyError:
        return None
    bound = Binding(DeploymentInfo.from_proto(DeploymentRoute.FromString(told).deployment_info), None).options
    offer = bound.get("offer")
    return None if offer is None else BoundGeneration(offer, bool(bound.get("by_rollout")))


def remember(offer: GenerationOffer, origin: str) -> None:
    """This is what was rolled out in its app, which was built with the arguments of `origin`."""
    _internal_kv_put(rolled_out_key(offer.app), pickle.dumps((origin, offer)), overwrite=True, namespace=NAMESPACE)


def recall(origin: str) -> GenerationOffer | None:
    """What was rolled out over the app that is being built, if it was built with the same arguments then.

    None if nothing was, and outside of Ray Serve's own task that builds an app, since `serve run` means what is written
    now.
    """
    app = app_being_built()
    found = [] if app is None else _remembered(rolled_out_key(app), origin)
    return found[0] if found else None


def forget(offer: GenerationOffer) -> None:
    """The app was deployed with another generation, past all rollouts: what was remembered before is history."""
    if any(before.built_at < offer.built_at for before in _remembered(rolled_out_key(offer.app))):
        _internal_kv_del(rolled_out_key(offer.app), namespace=NAMESPACE)


def _remembered(key: str, origin: str | None = None) -> list[GenerationOffer]:
    """The one that is kept under a key, if it is of an origin, and can be read by this release."""
    value = _internal_kv_get(key, namespace=NAMESPACE)
    if value is None:
        return []
    try:
        of, offer = pickle.loads(value)
        assert isinstance(offer, GenerationOffer)
    except Exception as error:
        logger.error("%s can't be read: %r", key, error)
        return []
    return [offer] if origin in (None, of) else []
