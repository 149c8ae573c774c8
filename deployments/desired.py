"""What `serve deploy` of a generated file wants: the ingress has it rolled out, in a task of its own."""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import ray

from deployments.rollout_requests import request_desired

logger = logging.getLogger("ray.serve")

AGAIN_S = 10.0
BUSY_S = 60.0
"""Seconds until it is asked for again: while the planner can't be asked or is about to hear that the app is deployed;
while another rollout is on its way."""


async def ask_in_a_task(app: str, desired: dict[str, Any]) -> dict[str, Any]:
    """Planning takes seconds of a processor, and the ingress has requests to forward."""
    task = ray.remote(num_cpus=0, max_retries=0)(request_desired)
    answer: dict[str, Any] = await task.remote(app, desired)
    return answer


class Desired:
    """Asks the planner for a configuration, once for each that is set, until it was answered."""

    def __init__(
        self,
        app: str,
        *,
        ask: Callable[[str, dict[str, Any]], Awaitable[dict[str, Any]]] = ask_in_a_task,
        again_s: float = AGAIN_S,
        busy_s: float = BUSY_S,
    ) -> None:
        self._app = app
        self._ask = ask
        self._again_s = again_s
        self._busy_s = busy_s
        self._wanted = ""
        self._task: asyncio.Task[None] | None = None

    def set(self, desired: Any) -> None:
        """This is wanted from now on; None: nothing is. The same again does nothing.

        Raises:
            ValueError: it has no configuration.
        """
        if desired is not None and not (isinstance(desired, dict) and isinstance(desired.get("config"), dict)):
            raise ValueError("desired has no `config` with the sections of a configuration")
        wanted = "" if desired is None else json.dumps(desired, sort_keys=True)
        if wanted == self._wanted:
            return
        self.stop()
        self._wanted = wanted
        if desired is not None:
            self._task = asyncio.ensure_future(self._until_answered(desired))

    def stop(self) -> None:
        """Safe to repeat."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _until_answered(self, desired: dict[str, Any]) -> None:
        while True:
            try:
                answer = await self._ask(self._app, desired)
            except Exception as error:
                logger.warning("the desired configuration could not be asked for yet: %s", error)
                await asyncio.sleep(self._again_s)
                continue
            if "busy" not in answer:
                level = logging.ERROR if "refused" in answer else logging.INFO
                logger.log(level, "the desired configuration: %s", _words(answer))
                return
            logger.warning("the desired configuration waits: %s", answer["busy"])
            await asyncio.sleep(self._again_s if answer.get("soon") else self._busy_s)


def _words(answer: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in answer.items() if name != "problems")
