"""One rollout under load: what a client saw while it went on, how it ended, and what the fleet is afterwards."""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.known_requests import Answers, endless, figures, longest_gap
from benchmarks.load import Load, Outcome, Request
from benchmarks.local_fleet import LocalFleet, until
from benchmarks.rollout_watch import AWAY, Command, Watch
from benchmarks.steady_load import steady

BEFORE_S, AFTER_S = 6.0, 5.0
LONGEST_S = 500.0

During = Callable[[Watch, Command], dict[str, Any]]
"""Something that is done while a rollout runs; what it says is put beside the rest."""


@dataclass
class Scene:
    """A fleet under a stated load.

    Attributes:
        config, changes: the file that the fleet was started with, and `key=value` for it.
        rate: requests a second, Poisson.
        rollout: arguments of `hybrid-serve rollout`.
        hurried: further ones, where it is not looked at how fast requests are answered meanwhile.
    """

    fleet: LocalFleet
    config: str
    changes: list[str]
    questions: list[Request]
    answers: Answers
    rate: float
    seed: int
    rollout: list[str]
    hurried: list[str]
    damaged: dict[str, Path] = field(default_factory=dict)

    @property
    def load(self) -> Load:
        return Load(self.fleet.url, self.fleet.model, deadline_s=120)

    def under(self, load: Load) -> Any:
        """The load goes on in the background of the block."""
        self.seed += 1
        return steady(load, endless(self.questions, self.seed), self.rate, self.seed)

    def generation(self, *changes: str) -> list[str]:
        """Arguments that name a configuration: the fleet's own with further changes."""
        return [self.config, *self.changes, *changes]

    def speculative_tokens(self) -> int:
        """K of the current generation."""
        known = self.fleet.rollouts()
        (current,) = [each for each in known["generations"] if each["number"] == known["current"]]
        return int(next(iter(current["pools"].values()))["num_speculative_tokens"])

    def roll_out(self, *changes: str, during: During | None = None, hurried: bool = True) -> dict[str, Any]:
        """Roll the fleet's configuration with these changes out, under load, until it is over."""
        options = [*self.rollout, *(self.hurried if hurried else ())]
        before = {name: pid for name, pid in replica_pids(self.fleet).items()}
        events = len(self.fleet.history())
        watch, load = Watch(self.fleet.rollouts), self.load
        with self.under(load):
            time.sleep(BEFORE_S)
            began = time.monotonic()
            command = Command(self.fleet.address, "rollout", *self.generation(*changes), *options, "--json")
            told = {} if during is None else during(watch, command)
            status = command.wait(LONGEST_S)
            if status < 0:  # it was killed: the rollout goes on without it
                watch.until_over(str(command.objects[0]["started"]), LONGEST_S)
            seconds = time.monotonic() - began
            until(lambda: settled(self.fleet), 180)
            time.sleep(AFTER_S)
        watch.close()
        last = self.fleet.rollouts()["last"]
        return {
            "changes": list(changes),
            "options": options,
            "seconds": round(seconds, 1),
            "exit_status": status,
            "end": last["phase"].replace("_", " "),
            "failure": last["failure"],
            "gates_failed": sorted({gate["gate"] for gate in last["gates"] if gate["state"] == "failed"}),
            "verdicts": [gate["text"] for gate in last["gates"] if gate["new"] is not None],
            "phases_s": watch.phases(last["name"]),
            **told,
            "load": figures(load.outcomes, self.answers),
            "not_answered": not_answered(load.outcomes, self.answers),
            "replicas_replaced": len(before.keys() - replica_pids(self.fleet).keys()),
            "events": [
                f"{each['event']}: {each['reason']}" if each["reason"] else each["event"]
                for each in self.fleet.history()[events:]
            ],
            "after": after(self.fleet),
        }


def not_answered(outcomes: list[Outcome], answers: Answers) -> list[dict[str, Any]]:
    """Requests that failed, or were answered wrongly; at most 20."""
    bad = [o for o in outcomes if o.end != "done" or not answers.right(o)]
    return [
        {
            "sent_s": round(o.sent_s, 2),
            "status": o.status,
            "end": "wrong answer" if o.end == "done" else o.end,
            "streamed": o.request.stream,
            "total_s": round(o.total_s, 2),
        }
        for o in bad[:20]
    ]


def replica_pids(fleet: LocalFleet) -> dict[str, int]:
    """Process id by replica; without those that are dead and still listed until their silence is noticed."""
    pids = {}
    for each in fleet.rollouts()["replicas"]:
        with suppress(LookupError):
            pids[each["replica"]] = fleet.replica_called(each["replica"]).pid
    return pids


def settled(fleet: LocalFleet) -> bool:
    """No rollout is active, Ray Serve is content, and every replica serves the current generation."""
    try:
        known = fleet.rollouts()
    except AWAY:
        return False
    replicas = known["replicas"]
    try:
        whole = fleet.whole()
    except TimeoutError:  # a replica that dies while Ray Serve updates makes the app DEPLOY_FAILED until it is replaced
        return False
    return (
        whole
        and not known.get("rollout")
        and {each["pool"] for each in replicas} == set(fleet.pools)
        and all(each["state"] == "serving" and each["generation"] == known["current"] for each in replicas)
    )


def after(fleet: LocalFleet) -> dict[str, Any]:
    """What the fleet is: one generation, or not; and whether what the planner knows contradicts itself."""
    known, status = fleet.rollouts(), fleet.status()
    return {
        "current": known["current"],
        "bound": known["bound"],
        "generations_of_replicas": sorted({each["generation"] for each in known["replicas"]}),
        "replicas": len(known["replicas"]),
        "integrity": status["integrity"],
        "planner_starts": status["starts"],
        "differences": [line for entry in status["replicas"] for line in entry["differences"]],
    }


__all__ = ["Scene", "after", "figures", "longest_gap", "not_answered", "replica_pids", "settled"]
