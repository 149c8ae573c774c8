"""Whether Ray Serve has an app. The controller is asked over its own actor methods (checked with Ray 2.60)."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

TIMEOUT_S = 10.0
CONTROLLER, CONTROLLER_NAMESPACE = "SERVE_CONTROLLER_ACTOR", "serve"
"""Ray Serve's own constants; importing them would load all of it into the planner's process."""

IsDeployed = Callable[[str], Awaitable[bool]]
"""Of an app's name. Raises whatever Ray raises if it can't be told."""


async def is_deployed(app: str) -> bool:
    """False if Ray Serve has no such app, is deleting it, or does not run at all.

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
    ingress = await asyncio.wait_for(controller.get_ingress_deployment_name.remote(app), TIMEOUT_S)
    return ingress is not None
