"""SIGKILL in the middle of a rollout: of the planner, Ray Serve's controller, the command, a canary or its engine."""

import time
from collections.abc import Callable
from typing import Any

import psutil

from benchmarks.local_fleet import LocalFleet, engine_core_of
from benchmarks.rollout_watch import Command, Watch

VICTIMS = ("planner", "controller", "command", "canary")
PHASES = ("canary", "baking", "rolling", "applying")


def killed(fleet: LocalFleet, victim: str, phase: str) -> Callable[[Watch, Command], dict[str, Any]]:
    """Kills the victim once the rollout is in a phase. `engine`: of a canary that serves the new generation."""

    def kill(watch: Watch, command: Command) -> dict[str, Any]:
        rollout = watch.until_phase(phase)
        began = time.monotonic()
        if victim == "command":
            command.process.kill()
        else:
            process_of(fleet, victim, watch).kill()
        return {
            "killed": victim,
            "in_phase": rollout["phase"],
            "of_generation": rollout["to"],
            "kill_took_s": round(time.monotonic() - began, 2),
        }

    return kill


def process_of(fleet: LocalFleet, victim: str, watch: Watch) -> psutil.Process:
    """The process to kill."""
    if victim == "planner":
        return fleet.planner()
    if victim == "controller":
        return fleet.controller()
    replica = watch.until(_a_canary, "a canary was ordered", 60)
    process = fleet.replica_called(replica["replica"])
    return engine_core_of(process) if victim == "engine" else process


def _a_canary(known: dict[str, Any]) -> dict[str, Any] | None:
    replicas: list[dict[str, Any]] = known["replicas"]
    return next((each for each in replicas if each["canary"]), None)
