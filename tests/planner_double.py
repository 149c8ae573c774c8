"""A planner that answers what it was given, in place of a Ray that commands connect to."""

from collections.abc import Callable
from typing import Any

import pytest
import ray

from deployments import rollout_requests


class PlannerDouble:
    """A planner's handle. Answers by method: a value, an error to raise, a function of the arguments, or a `Script`.

    `asked` are the calls: method and arguments.
    """

    def __init__(self, **answers: Any) -> None:
        self._answers = answers
        self.asked: list[tuple[Any, ...]] = []

    def __getattr__(self, method: str) -> Any:
        if method not in self._answers:
            raise AttributeError(method)
        return _Method(self, method)

    def calls(self, method: str) -> list[tuple[Any, ...]]:
        """The arguments of each call of one method."""
        return [call[1:] for call in self.asked if call[0] == method]

    def answer(self, method: str, *args: Any) -> Any:
        self.asked.append((method, *args))
        answer = self._answers[method]
        if isinstance(answer, Script):
            answer = answer.next()
        if isinstance(answer, BaseException):
            raise answer
        return answer(*args) if callable(answer) else answer


class Script:
    """Answers one after another; the last is repeated."""

    def __init__(self, *answers: Any) -> None:
        self._answers = list(answers)

    def next(self) -> Any:
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]


class _Method:
    def __init__(self, planner: PlannerDouble, name: str) -> None:
        self._planner, self._name = planner, name

    def remote(self, *args: Any) -> Callable[[], Any]:
        return lambda: self._planner.answer(self._name, *args)


def stand_in(monkeypatch: pytest.MonkeyPatch, planner: PlannerDouble) -> PlannerDouble:
    """Commands find this planner in a Ray that they are connected to."""
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray, "get_actor", lambda name, namespace: planner)
    monkeypatch.setattr(ray, "get", lambda reference, timeout=None: reference())
    monkeypatch.setattr(rollout_requests, "planner_handle", lambda: planner)
    return planner


def raised_in_the_planner(error: Exception) -> BaseException:
    """What a caller gets of it from Ray."""
    failed: BaseException = ray.exceptions.RayTaskError("method", "Traceback ...", error).as_instanceof_cause()
    return failed


def rollout(phase: str, **values: Any) -> dict[str, Any]:
    """As `Planner.rollouts` gives it."""
    return {
        "name": "rollout-2",
        "from": 1,
        "to": 2,
        "kind": "rollout",
        "actor": "ann@head",
        "reason": "",
        "phase": phase,
        "paused": False,
        "wave": 1,
        "since": "2026-11-30T12:00:00+00:00",
        "phase_since": "2026-11-30T12:00:00+00:00",
        "steps": [],
        "gates": [],
        "failure": "",
        **values,
    }


def step(replica: str, state: str, pool: str = "h20", generation: int = 1) -> dict[str, Any]:
    return {"replica": replica, "pool": pool, "state": state, "canary": False, "generation": generation, "reason": ""}


def gate(state: str = "passed", **values: Any) -> dict[str, Any]:
    figures = {"old": 0.026, "new": 0.031, "limit": 0.052}
    return {"pool": "h20", "gate": "TTFT", "state": state, "text": "", **figures, **values}


def rollouts(active: dict[str, Any] | None = None, last: dict[str, Any] | None = None, **values: Any) -> dict[str, Any]:
    """The whole answer of `Planner.rollouts`, of one app."""
    generations = [
        {
            "number": number,
            "digest": f"{number:016x}",
            "state": state,
            "created_at": f"2026-11-30T1{number}:00:00+00:00",
            "actor": "ann@head",
        }
        for number, state in ((1, "current"), (2, "rolling out"))
    ]
    return {
        "default": {
            "current": 1,
            "bound": 1,
            "generations": generations,
            "rollout": active,
            "last": last,
            "replicas": [],
            "measured": {},
            **values,
        }
    }
