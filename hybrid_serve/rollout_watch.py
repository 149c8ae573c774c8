"""Following a rollout until it ends, through deaths of the planner. Leaving it changes nothing."""

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Protocol

from hybrid_serve.cluster_connection import NoFleetError, SilentPlannerError
from hybrid_serve.rollout_lines import ENDS, Changes, Rollout

PERIOD_S = 0.5
ANSWER_S = 5.0
"""Within which the planner answers a look; a rollout goes on as well without being looked at."""


class Asks(Protocol):
    """What is needed of a `PlannerConnection`."""

    def ask(self, method: str, *args: object, timeout_s: float = ...) -> Any: ...


class Show(Protocol):
    """Where it is shown."""

    def rollout(self, rollout: Rollout, lines: list[str]) -> None:
        """Something has changed: the whole rollout, and the changes in words."""

    def planner(self, answers: bool, text: str) -> None:
        """The planner has fallen silent, or is back."""


class GoneError(Exception):
    """The planner does not know the rollout any more."""


def watch(planner: Asks, app: str, name: str, show: Show, *, sleep: Callable[[float], None] = time.sleep) -> Rollout:
    """Shows each change until the rollout has ended; its last state.

    Raises:
        GoneError: a later rollout has taken its place in the planner's book.
        KeyboardInterrupt: who watches has had enough.
    """
    changes = Changes()
    silent = False
    while True:
        try:
            now = _look(planner, app, name)
        except NoFleetError as error:
            if not silent:
                show.planner(False, str(error))
            silent = True
        else:
            if silent:
                show.planner(True, "the planner answers again")
            silent = False
            if lines := changes.of(now):
                show.rollout(now, lines)
            if now["phase"] in ENDS:
                return now
        sleep(PERIOD_S)


def _look(planner: Asks, app: str, name: str) -> Rollout:
    known = planner.ask("rollouts", app, timeout_s=ANSWER_S)
    if app not in known:
        raise SilentPlannerError("the planner has not read its book yet")
    for rollout in (known[app]["rollout"], known[app]["last"]):
        if rollout is not None and rollout["name"] == name:
            found: Rollout = rollout
            return found
    raise GoneError(f"{name} is over, and a later rollout of {app} was begun: hybrid-serve history --app {app}")


class Lines:
    """For people: a line for each change, with the time of day."""

    def rollout(self, rollout: Rollout, lines: list[str]) -> None:
        for line in lines:
            self._print(line)

    def planner(self, answers: bool, text: str) -> None:
        self._print(text if answers else f"{text}; the rollout is in its book and goes on when it is back. Asking on")

    def _print(self, line: str) -> None:
        print(f"{time.strftime('%H:%M:%S')}  {line}", flush=True)


class Objects:
    """For machines: a JSON object a line for each change."""

    def __init__(self, app: str) -> None:
        self._app = app

    def rollout(self, rollout: Rollout, lines: list[str]) -> None:
        self._print({"rollout": rollout, "changes": lines})

    def planner(self, answers: bool, text: str) -> None:
        self._print({"planner": "answers" if answers else "silent", "text": text})

    def _print(self, values: dict[str, Any]) -> None:
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        print(json.dumps({"at": at, "app": self._app, **values}), flush=True)
