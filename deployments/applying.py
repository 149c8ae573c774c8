"""A generation handed to Ray Serve without restarting what need not restart.

Ray Serve 2.60 compares deployments by a code version, by the actor options and by the deployment's options, never by
the arguments that replicas are made with. So the code versions that the controller has are used again, with the actor
options that it has wherever a pool's own did not change: replicas stay, newcomers get the new arguments, and options
(bounds, policies, user_config) are taken in place.

An app that was deployed by `serve deploy` is, after this, one that was deployed by code (`APIType.IMPERATIVE`) until
`serve deploy` is run again:

- `serve status` and the dashboard show it as before; `GET /api/serve/applications/?api_type=declarative`, which KubeRay
  asks for, does not. KubeRay then submits its configuration again.
- the next `serve deploy`, of the same file too, builds the app again (there is no code version to compare with). Code
  versions follow from the file's import path, runtime_env and args, so those of the same file are the ones that were
  kept here: no replica restarts. As the arguments are the same, what is built is what was applied here last
  (`deployments.builder.app`), and the app is one of `serve deploy` again. Other arguments count again: every replica
  restarts, past all gates, as ever.
- a `serve deploy` of a file without this app used to delete it, and leaves it alone now: `serve delete` does it.
- `target_capacity` of the file does not hold until then.
"""

import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

from ray.serve._private.build_app import build_app
from ray.serve._private.common import DeploymentStatus, DeploymentStatusInfo, DeploymentStatusTrigger
from ray.serve.context import _get_global_client
from ray.serve.deployment import Deployment
from ray.serve.schema import ApplicationStatus

from deployments.binding import Binding, bindings_of, generation_in, remember
from deployments.builder import application_of
from deployments.config import ReplicaConfig
from deployments.deployment_options import ingress_actor_options, pool_actor_options
from deployments.errors import last_exception
from deployments.generation import config_of, placement_digest
from deployments.pool_config import INGRESS
from hybrid_serve.rollout.wire import GenerationOffer, PoolOffer

TAKEN_TIMEOUT_S = 60.0
LOOK_PERIOD_S = 0.2


class ApplyError(Exception):
    """Ray Serve did not take a generation, or could not start its replicas; the text is Ray Serve's."""


def apply(offer: GenerationOffer, restart: Mapping[str, str], *, timeout_s: float = 1800.0) -> None:
    """Deploy a generation over the one that runs. Returns when Ray Serve has taken it, and every new or restarted
    deployment is healthy. Idempotent: what is there already is not restarted again.

    Only the pools in `restart` get new replicas. If others need them too (their place differs), this is a step on the
    way: those stay as they are, and nothing but what `restart` names comes or goes. So a planner replaces a pool at a
    time by naming one more in each call.

    An app that Ray Serve is deleting, or has no more, is not brought back.

    Blocks; run it in a task: `ray.remote(num_cpus=0)(apply).remote(offer, {})`.

    Args:
        restart: pool -> version to give it if its replicas must be replaced though Ray Serve sees no reason. Where the
            place differs it does, and the version stays, so that the same file deployed again finds it.
        timeout_s: for new and restarted deployments, all together.

    Raises:
        ApplyError: there is no such app (any more); Ray Serve refused; a deployment failed, or was not healthy in time.
    """
    client = _get_global_client()
    bound = bindings_of(offer.app)
    if INGRESS not in bound:
        raise ApplyError(f"there is no app {offer.app!r} with an ingress of ours: deploy it first")
    origin = str(bound[INGRESS].options.get("origin", ""))
    whole = _step_to(offer, bound, restart)
    built = build_app(
        application_of(whole, by_rollout=True, origin=origin),
        name=offer.app,
        route_prefix=_route_of(bound[INGRESS]),
    )
    deployments = [_as_bound(one, bound.get(one.name), bound, whole, restart) for one in built.deployments]
    _refuse_what_is_deleted(offer.app)
    if origin and whole is offer:
        remember(offer, origin)
    client.deploy_applications(
        [replace(built, deployments=deployments)],
        wait_for_ingress_deployment_creation=False,
        wait_for_applications_running=False,
    )
    started = time.monotonic()
    _wait_until_taken(offer.app, deployments)
    awaited = {one.name for one in deployments if one.name not in bound or one.name in restart}
    _wait_until_healthy(offer.app, awaited, started + timeout_s)


def _refuse_what_is_deleted(app: str) -> None:
    """Deploying an app that is being deleted would end that."""
    status = _get_global_client().get_serve_status(app).app_status.status
    if status in (ApplicationStatus.DELETING, ApplicationStatus.NOT_STARTED):
        raise ApplyError(f"app {app!r} was deleted ({status.value}): deploy it first")


def _step_to(offer: GenerationOffer, bound: Mapping[str, Binding], restart: Collection[str]) -> GenerationOffer:
    """The offer, with pools as they are bound now in place of those that have to wait; by another digest then."""
    pools = {name: binding for name, binding in bound.items() if name != INGRESS}
    waiting = {name for name in pools if name in offer.pools and name not in restart and _differs(pools[name], offer)}
    if not waiting:
        return offer
    named = {name: pool for name, pool in offer.pools.items() if name in pools or name in restart}
    kept = {name: _kept_pool(pools[name]) for name in pools if name in waiting or name not in offer.pools}
    digest = f"{offer.digest} but {', '.join(sorted(kept))}"
    return replace(offer, digest=digest, pools={**named, **kept})


def _differs(binding: Binding, offer: GenerationOffer) -> bool:
    """A replica of the pool can't become one of the offer's."""
    (config,) = binding.arguments
    return placement_digest(config) != placement_digest(offer.pools[config.pool.name].config)


def _kept_pool(binding: Binding) -> PoolOffer:
    config: ReplicaConfig = binding.arguments[0]
    return PoolOffer(
        model=str(config.model.name),
        config=config,
        engine_digest="",
        placement_digest=placement_digest(config),
        plan_id=None,
        kv_tokens=None,
        concurrency=None,
        num_speculative_tokens=0,
    )


def _as_bound(
    deployment: Deployment,
    binding: Binding | None,
    bound: Mapping[str, Binding],
    offer: GenerationOffer,
    restart: Mapping[str, str],
) -> Deployment:
    """A deployment under the version that the controller has for it, with what was merged into its actor options."""
    name = deployment.name
    if binding is None:
        version = restart.get(name, offer.digest)
        options = _merged(_of_ingress(bound[INGRESS]), deployment.ray_actor_options)
    elif name == INGRESS:
        version = binding.version
        options = _merged(_of_ingress(binding), deployment.ray_actor_options)
        deployment = deployment.options(user_config={**_wish_of(binding), **deployment.user_config})
    else:
        old: ReplicaConfig = binding.arguments[0]
        new: ReplicaConfig = deployment.init_args[0]
        merged = _without(binding.actor_options, pool_actor_options(old))
        options = _merged(merged, deployment.ray_actor_options)
        same = placement_digest(old) == placement_digest(new)
        forced = name in restart and same and binding.generation != offer.digest
        version = restart[name] if forced else binding.version
    return deployment.options(version=version, ray_actor_options=options, _internal=True)


def _wish_of(ingress: Binding) -> dict[str, Any]:
    """What a deployed file wants: it may wait for the end of this rollout."""
    told = ingress.info.deployment_config.user_config
    return {"desired": told["desired"]} if isinstance(told, dict) and told.get("desired") else {}


def _of_ingress(binding: Binding) -> dict[str, Any]:
    """What Ray Serve added to the ingress's actor options, as it does to all: the app's runtime_env."""
    bound = binding.options.get("offer")
    own = {} if bound is None else ingress_actor_options(config_of(bound))
    return _without(binding.actor_options, own)


def _without(options: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """`options` less all keys that `own` has, at any depth."""
    rest = {name: value for name, value in options.items() if name not in own}
    for name in ("runtime_env", "env_vars"):
        if isinstance(options.get(name), Mapping) and isinstance(own.get(name), Mapping):
            rest |= {name: inner} if (inner := _without(options[name], own[name])) else {}
    return rest


def _merged(rest: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """`own` over `rest`, at any depth of runtime_env."""
    merged = {**rest, **own}
    for name in ("runtime_env", "env_vars"):
        if isinstance(rest.get(name), Mapping) and isinstance(own.get(name), Mapping):
            merged[name] = _merged(rest[name], own[name])
    return merged


def _route_of(ingress: Binding) -> str | None:
    return ingress.route if ingress.route is not None else ingress.info.route_prefix


def _wait_until_taken(app: str, deployments: Collection[Deployment]) -> None:
    """The controller takes a deployed app with its next look at all of them."""
    deadline = time.monotonic() + TAKEN_TIMEOUT_S
    while True:
        now = bindings_of(app)
        missing = [one.name for one in deployments if one.name not in now or not _is_taken(one, now[one.name])]
        if not missing:
            return
        if time.monotonic() > deadline:
            raise ApplyError(f"Ray Serve has not taken {', '.join(missing)} of app {app} in {TAKEN_TIMEOUT_S:g} s")
        time.sleep(LOOK_PERIOD_S)


def _is_taken(deployment: Deployment, binding: Binding) -> bool:
    return binding.version == deployment.version and binding.generation == generation_in(
        deployment._deployment_config.autoscaling_config
    )


def _wait_until_healthy(app: str, names: Collection[str], deadline: float) -> None:
    while waiting := list(_not_ready(app, names)):
        if time.monotonic() > deadline:
            raise ApplyError(f"not healthy in time: {'; '.join(waiting)}")
        time.sleep(LOOK_PERIOD_S)


def _not_ready(app: str, names: Collection[str]) -> Iterator[str]:
    """A sentence for each that is still on its way. Raises `ApplyError` for one that failed."""
    statuses = {one.name: one for one in _get_global_client().get_serve_status(app).deployment_statuses}
    for name in names:
        status = statuses.get(name)
        if status is None:
            yield f"{name} is not there yet"
        elif status.status in (DeploymentStatus.DEPLOY_FAILED, DeploymentStatus.UNHEALTHY):
            raise ApplyError(f"{name}: {last_exception(status.message)}\n\nRay Serve says: {status.message}")
        elif not _is_ready(status):
            yield f"{name} is {status.status.value}{f': {status.message}' if status.message else ''}"


def _is_ready(status: DeploymentStatusInfo) -> bool:
    """Also one that autoscaling changes: that begins only when all that is deployed is there."""
    scaling = status.status in (DeploymentStatus.UPSCALING, DeploymentStatus.DOWNSCALING)
    return status.status == DeploymentStatus.HEALTHY or (
        scaling and status.status_trigger == DeploymentStatusTrigger.AUTOSCALING
    )
