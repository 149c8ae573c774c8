"""Deployments through Ray Serve, in the background of the planner's event loop."""

import asyncio
import importlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from hybrid_serve.rollout.wire import GenerationOffer

logger = logging.getLogger(__name__)

Apply = Callable[[GenerationOffer, dict[str, str]], Awaitable[None]]
"""Deploys an app; `restart` maps the deployments that need new replicas to their new version."""


async def apply_in_a_task(offer: GenerationOffer, restart: dict[str, str]) -> None:
    """By a Ray task of its own: it builds the app, and the planner's process stays small and answers meanwhile.

    Cancelled, it ends the task.

    Raises whatever the task raised.
    """
    import ray

    task = ray.remote(num_cpus=0, max_retries=0)(_deploy).options(name=f"deploys generation {offer.digest}")
    deploying = task.remote(offer, restart)
    try:
        await deploying
    except asyncio.CancelledError:
        ray.cancel(deploying, force=True)  # it waits for replicas; what Ray Serve was told, it was told whole
        raise


def _deploy(offer: GenerationOffer, restart: dict[str, str]) -> None:
    """The app's side imports this package, so it is only known in the task."""
    importlib.import_module("deployments.applying").apply(offer, restart)


@dataclass
class _Work:
    key: str = ""
    task: "asyncio.Task[None] | None" = None
    ended: dict[str, str] = field(default_factory=dict)


class BackgroundApplier:
    """One deployment of an app at a time. Needs a running event loop."""

    def __init__(self, apply: Apply = apply_in_a_task) -> None:
        self._apply = apply
        self._work: dict[str, _Work] = {}

    def start(self, app: str, key: str, offer: GenerationOffer, restart: dict[str, str]) -> None:
        """Begin, unless this key has begun. Another key that runs is cancelled first: it is asked for again then."""
        work = self._work.setdefault(app, _Work())
        if key == work.key or key in work.ended:
            return
        if work.task is not None and not work.task.done():
            work.task.cancel()
            return
        work.key = key
        work.task = asyncio.get_running_loop().create_task(self._run(work, key, offer, restart))

    def ended(self, app: str) -> dict[str, str]:
        """The error of each deployment that has ended, by key."""
        work = self._work.get(app)
        return {} if work is None else dict(work.ended)

    def settle(self, app: str, key: str) -> None:
        """What became of this key need not be told again."""
        if (work := self._work.get(app)) is not None:
            work.ended.pop(key, None)

    def cancel(self, app: str) -> None:
        """What runs of the app ends, and its keys are forgotten: an app that returns may use them again."""
        work = self._work.pop(app, None)
        if work is not None and work.task is not None:
            work.task.cancel()

    async def _run(self, work: _Work, key: str, offer: GenerationOffer, restart: dict[str, str]) -> None:
        try:
            await self._apply(offer, restart)
        except Exception as error:
            logger.error("app %s could not be deployed with generation %s: %s", offer.app, offer.digest, error)
            work.ended[key] = _first_line(error)
        else:
            work.ended[key] = ""


def _first_line(error: BaseException) -> str:
    cause = getattr(error, "cause", None) or error  # what a Ray task raised, without the task's traceback
    return (str(cause).strip().splitlines() or [type(cause).__name__])[0]
