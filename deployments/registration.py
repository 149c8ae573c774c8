"""The ingress's word to the planner of what Ray Serve deployed: in the background, until it is taken."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace

from deployments.binding import BoundGeneration, bound_generation, forget
from hybrid_serve.negotiation.client import tell_deployed
from hybrid_serve.rollout.wire import GenerationOffer

logger = logging.getLogger("ray.serve")

AGAIN_S = 5.0
LOOK_PERIOD_S = 30.0
"""Seconds between looks at what Ray Serve binds now: `serve deploy` may bind another generation and restart nobody."""


class Registration:
    """Tells of the generation that an ingress was made with, and of any other that Ray Serve is then deployed with.

    What the planner had deployed itself, or was told before, it is told as known: that counts only if it takes the app
    for one that is not deployed. No request waits for any of this.
    """

    def __init__(
        self,
        app: str,
        bound: BoundGeneration,
        *,
        tell: Callable[[GenerationOffer, bool], Awaitable[bool]] = tell_deployed,
        look: Callable[[str], BoundGeneration | None] = bound_generation,
        history: Callable[[GenerationOffer], None] = forget,
        again_s: float = AGAIN_S,
        look_period_s: float = LOOK_PERIOD_S,
    ) -> None:
        self._app = app
        self._bound = bound
        self._tell = tell
        self._look = look
        self._history = history
        self._again_s = again_s
        self._look_period_s = look_period_s
        self._told: tuple[str, float] | None = None
        self._task = asyncio.ensure_future(self._run())

    def stop(self) -> None:
        """Safe to repeat."""
        self._task.cancel()

    async def _run(self) -> None:
        while True:
            try:
                taken = await self._tell_once()
                await asyncio.sleep(self._look_period_s if taken else self._again_s)
                now = await asyncio.to_thread(self._look, self._app)
                if now is not None:
                    self._bound = now
            except Exception as error:
                logger.warning("the planner was not told what is deployed, again in %g s: %r", self._again_s, error)
                await asyncio.sleep(self._again_s)

    async def _tell_once(self) -> bool:
        """True if the planner knows what is deployed."""
        offer = replace(self._bound.offer, app=self._app)
        which = (offer.digest, offer.built_at)
        known = self._bound.by_rollout or self._told == which
        if not await self._tell(offer, known):
            return False
        if not known:
            self._told = which
            await asyncio.to_thread(self._history, offer)
        return True
