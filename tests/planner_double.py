"""A planner that answers what it was given, for tests of commands without Ray."""



from typing import Any






class PlannerDouble:
    """Answers by method: a value, an error to raise, or a list of these, the last of which is repeated.

    `asked` are the calls: method and arguments.
    """

    def __init__(self, **answers: Any) -> None:
        self._answers = answers
        self.asked: list[tuple[Any, ...]] = []

    def ask(self, method: str, *args: object, timeout_s: float = 30.0) -> Any:
        self.asked.append((method, *args))
        answer = self._answers[method]
        if isinstance(answer, Script):
            answer = answer.next()
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def calls(self, method: str) -> list[tuple[Any, ...]]:
        """The arguments of each call of one method."""
        return [call[1:] for call in self.asked if call[0] == method]


class Script:
    """Answers one after another; the last is repeated."""

    def __init__(self, *answers: Any) -> None:
        self._answers = list(answers)

    def next(self) -> Any:
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]


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
