"""Why facts could not be had, and what to change."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One thing that is wrong: `reason` with its numbers, `remedy` with what to change."""

    reason: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.reason}. {self.remedy}."


class FactsError(ValueError):
    """Facts are missing or contradict each other. `problems` holds all that was found, at least one.

    Survives pickling, so it reaches the driver of a cluster as it was raised.
    """

    def __init__(self, *problems: Problem) -> None:
        super().__init__(*problems)
        self.problems = problems

    def __str__(self) -> str:
        if len(self.problems) == 1:
            return str(self.problems[0])
        return f"{len(self.problems)} problems:" + "".join(f"\n- {problem}" for problem in self.problems)


def fail(reason: str, remedy: str) -> FactsError:
    """A FactsError with one problem, to be raised."""
    return FactsError(Problem(reason=reason, remedy=remedy))
