"""Whether Ray Serve has an app, and what it binds it to: its controller's methods tell (checked with Ray 2.60)."""

import asyncio
import importlib
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from hybrid_serve.rollout.wire import GenerationOffer

TIMEOUT_S = 10.0
CONTROLLER, CONTROLLER_NAMESPACE = "SERVE_CONTROLLER_ACTOR", "serve"
"""Ray Serve's own constants; importing them would load all of it before it is needed."""
GONE = ("APPLICATION_STATUS_NOT_STARTED", "APPLICATION_STATUS_DELETING")
"""The controller answers `NOT_STARTED` for an app that it does not have, and for no other."""

IsDeployed = Callable[[str], Awaitable[bool]]
"""Of an app's name. Raises whatever Ray raises if it can't be told."""
BoundTo = Callable[[str], Awaitable[GenerationOffer | None]]
"""Of an app's name: what Ray Serve binds its ingress to; None if it has none of ours. Raises as `IsDeployed`."""


async def is_deployed(app: str) -> bool:
    """False if Ray Serve has no such app, is deleting it, or does not run at all.

    An app that is being built, could not be built or is not healthy is deployed, though it may have no deployment.

    Raises:
        TimeoutError: the controller did not answer; it may be on its way back.
        Exception: whatever Ray raises if the controller can't be asked.
    """
    import ray

    if not ray.is_initialized():
        raise RuntimeError("this process is not connected to Ray")
    try:
        controller: Any = ray.get_actor(CONTROLLER, namespace=CONTROLLER_NAMESPACE)
    except ValueError:
        return False
    told = await asyncio.wait_for(controller.get_serve_status.remote(app), TIMEOUT_S)
    return await asyncio.to_thread(_status, told) not in GONE


def _status(told: bytes) -> str:
    from ray.serve.generated import serve_pb2

    return str(serve_pb2.ApplicationStatus.Name(serve_pb2.StatusOverview.FromString(told).app_status.status))


async def bound_to(app: str) -> GenerationOffer | None:
    """What newcomers of the app's ingress are made with; None if there is no ingress of ours.

    Raises:
        Exception: whatever Ray raises if the controller can't be asked.
    """
    look = importlib.import_module("deployments.binding").bound_generation
    bound = await asyncio.to_thread(look, app)
    return None if bound is None else replace(bound.offer, app=app)
