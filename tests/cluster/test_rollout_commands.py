"""The commands of a rollout as an operator runs them, against a real fleet of three pools with fake engines."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import ray
import yaml

from deployments.config import AppConfig
from hybrid_serve import cli
from hybrid_serve.negotiation.planner import ACTOR_NAME, NAMESPACE
from tests.cluster.conftest import App, chat, until
from tests.cluster.ordering_planner import forget_generations
from tests.cluster.test_pools import MEMORY, running, three_pools

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
BEGIN_S = 150
END_S = 240
"""Within which a command that was started shows the phase that is waited for, and ends: with room for a slow machine,
which takes ten seconds and more to import what a command needs."""


class Told(NamedTuple):
    """What a command ended with."""

    status: int
    out: str
    err: str


@dataclass(frozen=True)
class Started:
    """A command in a process of its own."""

    process: subprocess.Popen[bytes]
    log: Path
    errors: Path

    @property
    def out(self) -> str:
        return self.log.read_text()

    @property
    def err(self) -> str:
        return self.errors.read_text()

    def shows(self, text: str) -> None:
        """Waits until it does, or has ended."""
        until(lambda: text in self.out or self.process.poll() is not None, seconds=BEGIN_S)
        assert text in self.out, self.out + self.err

    def ended(self) -> int:
        """Its exit status."""
        try:
            return self.process.wait(END_S)
        finally:
            self.kill()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


class Operator:
    """Runs commands on the file that the fleet was deployed with."""

    def __init__(self, config: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """`folder`: for what processes print."""
        self._config = str(config)
        self._folder = folder
        self._capsys = capsys
        self._numbers = count()
        self._address = ray.get_runtime_context().gcs_address

    def run(self, command: str, *arguments: str, config: bool = True) -> Told:
        """In this process: most of a command's time goes into importing Ray and reaching the cluster."""
        self._capsys.readouterr()
        status = cli.main(self._line(command, *arguments, config=config))
        return Told(status, *self._capsys.readouterr())

    def start(self, command: str, *arguments: str, config: bool = True) -> Started:
        """As an operator does it: for what the process itself is to do."""
        number = next(self._numbers)
        log, errors = self._folder / f"{number}.out", self._folder / f"{number}.err"
        line = [sys.executable, "-m", "hybrid_serve.cli", *self._line(command, *arguments, config=config)]
        # A shell has what it starts in the background ignore Ctrl-C, and all below it, until somebody takes it up.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            with log.open("w") as out, errors.open("w") as err:
                return Started(subprocess.Popen(line, cwd=ROOT, stdout=out, stderr=err), log, errors)
        finally:
            signal.signal(signal.SIGINT, before)

    def _line(self, command: str, *arguments: str, config: bool) -> list[str]:
        given = [self._config] if config else []
        return [command, *given, *arguments, "--address", self._address]


@pytest.fixture(scope="module")
def fleet(pair_folder: Path, deployed: Callable[[AppConfig], Any]) -> Iterator[App]:
    forget_generations()
    with deployed(AppConfig.model_validate(three_pools(pair_folder))) as app:
        running(set(MEMORY))
        until(lambda: generation_of_all() == {1}, seconds=BEGIN_S)
        yield app


@pytest.fixture
def operator(fleet: App, pair_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Operator:
    file = tmp_path / "fleet.yaml"
    file.write_text(yaml.safe_dump(three_pools(pair_folder)))
    return Operator(file, tmp_path, capsys)


def rollouts() -> dict[str, Any]:
    planner = ray.get_actor(ACTOR_NAME, NAMESPACE)
    known: dict[str, Any] = ray.get(planner.rollouts.remote("default"), timeout=20).get("default", {})
    return known


def generation_of_all() -> set[int]:
    """What the replicas of the three pools run."""
    replicas = [one for one in rollouts().get("replicas", []) if one["pool"] in MEMORY]
    assert len(replicas) <= len(MEMORY)
    return {one["generation"] for one in replicas} if len(replicas) == len(MEMORY) else set()


def test_a_generation_that_one_pool_can_not_hold_is_told_with_its_numbers(operator: Operator) -> None:
    told = operator.start("validate", "pools.small.kv_memory=1MiB", "pools.large.tensor_parallel_size=1")
    assert told.ended() == 1, told.err
    assert "devices of middle, large: as their replicas measured them" in told.out
    assert "refused, pool small: one request of 2,048 tokens needs" in told.out
    assert "1,048,576" in told.out and "what to change" in told.out
    assert operator.run("validate").status == 0
    refused = operator.run("rollout", "pools.small.kv_memory=1MiB")
    assert refused.status == 1 and "pool small" in refused.err
    assert rollouts()["rollout"] is None and len(rollouts()["generations"]) == 1, "nothing was touched"


def test_what_a_change_costs_is_told_before_it_is_made(operator: Operator) -> None:
    told = operator.run("diff", "num_speculative_tokens=5", "limits.retries=1")
    assert told.status == 0, told.err
    assert re.search(r"engine\.num_speculative_tokens +7 +5 +replan", told.out), told.out
    assert re.search(r"limits\.retries +2 +1 +live", told.out)
    restarting = re.findall(r"^(\w+): engines restart inside their replicas.*: (\S+)$", told.out, re.M)
    assert {pool for pool, _ in restarting} == set(MEMORY)
    assert {name for _, name in restarting} == {one["replica"] for one in rollouts()["replicas"]}
    only_live = json.loads(operator.run("diff", "limits.retries=1", "--json").out)
    assert only_live["cost"] == "live" and not any(pool["replicas"] for pool in only_live["pools"])
    assert "nothing would change" in operator.run("diff").out


def test_a_rollout_is_left_with_ctrl_c_and_attached_to_again(operator: Operator, fleet: App) -> None:
    before = {one["replica"] for one in rollouts()["replicas"]}
    options = ["num_speculative_tokens=5", "--canary", "1", "--bake", "3s", "--reason", "shorter drafts"]
    watching = operator.start("rollout", *options)
    try:
        watching.shows("baking")
        # Until it is resumed it stays in this phase, however long the commands below take.
        paused = operator.run("pause", config=False)
        assert (paused.status, paused.out) == (0, "rollout-1 is paused: hybrid-serve resume goes on with it\n")
        watching.process.send_signal(signal.SIGINT)
        assert watching.ended() == 3, watching.out + watching.err
    finally:
        watching.kill()
    assert "rollout-1 goes on: hybrid-serve rollout --attach" in watching.err
    assert rollouts()["rollout"]["phase"] == "baking"
    other = operator.run("rollout", "num_speculative_tokens=3")
    assert other.status == 1 and "rollout-1" in other.err, "a second one is refused with the first one's name"
    assert "rollout-1 to generation 2: baking, paused" in operator.run("status", config=False).out
    attached = operator.start("rollout", "--attach", config=False)
    try:
        attached.shows("baking, paused")
        resumed = operator.run("resume", config=False)
        assert (resumed.status, resumed.out) == (0, "rollout-1 goes on\n")
        assert attached.ended() == 0, attached.out + attached.err
    finally:
        attached.kill()
    told = [line[10:] for line in attached.out.splitlines()]
    assert told[0].startswith("rollout-1, generation 1 -> 2, by ") and told[0].endswith(": shorter drafts")
    assert told[1] == "baking, paused" and told[-1] == "done: generation 2 serves"
    assert generation_of_all() == {2} and {one["replica"] for one in rollouts()["replicas"]} == before
    assert fleet.openai.chat.completions.create(**chat(max_tokens=2)).choices[0].finish_reason == "length"
    again = operator.run("rollout", *options)
    assert (again.status, again.out) == (0, "generation 2 is this already: nothing to do\n")


def test_the_planner_may_die_while_a_rollout_is_watched(operator: Operator) -> None:
    watching = operator.start("rollout", "num_speculative_tokens=4", "--bake", "4s", "--json")
    try:
        watching.shows('"baking"')
        planner = ray.get_actor(ACTOR_NAME, NAMESPACE)
        os.kill(ray.get(planner.status.remote(), timeout=20)["pid"], signal.SIGKILL)
        assert watching.ended() == 0, watching.out + watching.err
    finally:
        watching.kill()
    told = [json.loads(line) for line in watching.out.splitlines()]
    assert told[0]["started"] == "rollout-2" and told[-1]["rollout"]["phase"] == "done"
    assert generation_of_all() == {3}


def test_a_rollback_goes_to_the_last_good_generation_and_is_in_the_history(operator: Operator) -> None:
    back = operator.run("rollback", "--reason", "it was better", config=False)
    assert back.status == 0, back.out + back.err
    assert back.out.splitlines()[-1].endswith("done: generation 2 serves")
    assert generation_of_all() == {2}
    unknown = operator.run("rollback", "--to", "9", config=False)
    assert unknown.status == 1 and "generation 9 is unknown; default has 1 (good), 2 (current)" in unknown.err
    assert operator.run("pause", config=False).status == 1
    shown = json.loads(operator.run("history", "--json", config=False).out)
    events = shown["events"]
    assert [event["at"] for event in events] == sorted(event["at"] for event in events)
    begun = [(event["rollout"], event["reason"]) for event in events if event["event"].endswith(" begins")]
    assert begun == [("rollout-1", "shorter drafts"), ("rollout-2", ""), ("rollout-3", "it was better")]
    assert all("@" in event["actor"] for event in events if event["event"].endswith(" begins"))
    assert [one["number"] for one in shown["generations"]["default"]] == [1, 2, 3]
    table = operator.run("history", config=False).out
    assert "rollback begins" in table and "it was better" in table
