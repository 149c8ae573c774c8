"""The commands of a rollout as an operator runs them, against a real fleet of three pools with fake engines."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
import yaml
from ray.experimental.internal_kv import _internal_kv_del

from deployments.config import AppConfig
from hybrid_serve.negotiation.planner import ACTOR_NAME, NAMESPACE
from hybrid_serve.negotiation.store import NAMESPACE as STORE
from tests.cluster.conftest import App, chat, until
from tests.cluster.ordering_planner import end_planner
from tests.cluster.test_pools import MEMORY, running, three_pools

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).parents[2]
END_S = 120


class Operator:
    """Runs commands on the file that the fleet was deployed with."""

    def __init__(self, config: Path) -> None:
        self._config = str(config)
        self._address = ray.get_runtime_context().gcs_address

    def run(self, command: str, *arguments: str, config: bool = True) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self._line(command, *arguments, config=config), cwd=ROOT, capture_output=True, text=True, timeout=END_S
        )

    def start(self, log: Path, command: str, *arguments: str) -> subprocess.Popen[bytes]:
        line = self._line(command, *arguments, config=True)
        return subprocess.Popen(line, cwd=ROOT, stdout=log.open("w"), stderr=subprocess.STDOUT)

    def _line(self, command: str, *arguments: str, config: bool) -> list[str]:
        given = [self._config] if config else []
        return [sys.executable, "-m", "hybrid_serve.cli", command, *given, *arguments, "--address", self._address]


def forget_generations() -> None:
    """The next planner numbers from 1, as on a cluster on which nothing was deployed before."""
    end_planner()
    _internal_kv_del("rollout", del_by_prefix=True, namespace=STORE)


@pytest.fixture(scope="module")
def fleet(pair_folder: Path, deployed: Callable[[AppConfig], Any]) -> Iterator[App]:
    forget_generations()
    with deployed(AppConfig.model_validate(three_pools(pair_folder))) as app:
        running(set(MEMORY))
        until(lambda: generation_of_all() == {1}, seconds=30)
        yield app


@pytest.fixture(scope="module")
def operator(fleet: App, pair_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Operator:
    file = tmp_path_factory.mktemp("operator") / "fleet.yaml"
    file.write_text(yaml.safe_dump(three_pools(pair_folder)))
    return Operator(file)


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
    told = operator.run("validate", "pools.small.kv_memory=1MiB", "pools.large.tensor_parallel_size=1")
    assert told.returncode == 1, told.stderr
    assert "devices of middle, large: as their replicas measured them" in told.stdout
    assert "refused, pool small: one request of 2,048 tokens needs" in told.stdout
    assert "1,048,576" in told.stdout and "what to change" in told.stdout
    assert operator.run("validate").returncode == 0
    refused = operator.run("rollout", "pools.small.kv_memory=1MiB")
    assert refused.returncode == 1 and "pool small" in refused.stderr
    assert rollouts()["rollout"] is None and len(rollouts()["generations"]) == 1, "nothing was touched"


def test_what_a_change_costs_is_told_before_it_is_made(operator: Operator) -> None:
    told = operator.run("diff", "num_speculative_tokens=5", "limits.retries=1")
    assert told.returncode == 0, told.stderr
    assert re.search(r"engine\.num_speculative_tokens +7 +5 +replan", told.stdout), told.stdout
    assert re.search(r"limits\.retries +2 +1 +live", told.stdout)
    restarting = re.findall(r"^(\w+): engines restart inside their replicas.*: (\S+)$", told.stdout, re.M)
    assert {pool for pool, _ in restarting} == set(MEMORY)
    assert {name for _, name in restarting} == {one["replica"] for one in rollouts()["replicas"]}
    only_live = json.loads(operator.run("diff", "limits.retries=1", "--json").stdout)
    assert only_live["cost"] == "live" and not any(pool["replicas"] for pool in only_live["pools"])
    assert "nothing would change" in operator.run("diff").stdout


def test_a_rollout_is_left_with_ctrl_c_and_attached_to_again(operator: Operator, fleet: App, tmp_path: Path) -> None:
    before = {one["replica"] for one in rollouts()["replicas"]}
    options = ["num_speculative_tokens=5", "--canary", "1", "--bake", "6s", "--reason", "shorter drafts"]
    log = tmp_path / "log"
    watching = operator.start(log, "rollout", *options)
    try:
        until(lambda: "baking" in log.read_text() or watching.poll() is not None, seconds=60)
        watching.send_signal(signal.SIGINT)
        assert watching.wait(30) == 3, log.read_text()
    finally:
        watching.kill()
    assert "rollout-1 goes on: hybrid-serve rollout --attach" in log.read_text()
    assert rollouts()["rollout"]["phase"] == "baking"
    other = operator.run("rollout", "num_speculative_tokens=3")
    assert other.returncode == 1 and "rollout-1" in other.stderr, "a second one is refused with the first one's name"
    assert "rollout-1 to generation 2: baking" in operator.run("status", config=False).stdout
    attached = operator.run("rollout", "--attach", config=False)
    assert attached.returncode == 0, attached.stdout + attached.stderr
    told = [line[10:] for line in attached.stdout.splitlines()]
    assert told[0].startswith("rollout-1, generation 1 -> 2, by ") and told[0].endswith(": shorter drafts")
    assert "baking" in told and told[-1] == "done: generation 2 serves"
    assert generation_of_all() == {2} and {one["replica"] for one in rollouts()["replicas"]} == before
    assert fleet.openai.chat.completions.create(**chat(max_tokens=2)).choices[0].finish_reason == "length"
    again = operator.run("rollout", *options)
    assert (again.returncode, again.stdout) == (0, "generation 2 is this already: nothing to do\n")


def test_the_planner_may_die_while_a_rollout_is_watched(operator: Operator, tmp_path: Path) -> None:
    log = tmp_path / "log"
    watching = operator.start(log, "rollout", "num_speculative_tokens=4", "--bake", "4s", "--json")
    try:
        until(lambda: '"baking"' in log.read_text() or watching.poll() is not None, seconds=60)
        planner = ray.get_actor(ACTOR_NAME, NAMESPACE)
        os.kill(ray.get(planner.status.remote(), timeout=20)["pid"], signal.SIGKILL)
        assert watching.wait(END_S) == 0, log.read_text()
    finally:
        watching.kill()
    told = [json.loads(line) for line in log.read_text().splitlines()]
    assert told[0]["started"] == "rollout-2" and told[-1]["rollout"]["phase"] == "done"
    assert generation_of_all() == {3}


def test_a_rollback_goes_to_the_last_good_generation_and_is_in_the_history(operator: Operator) -> None:
    back = operator.run("rollback", "--reason", "it was better", config=False)
    assert back.returncode == 0, back.stdout + back.stderr
    assert back.stdout.splitlines()[-1].endswith("done: generation 2 serves")
    assert generation_of_all() == {2}
    unknown = operator.run("rollback", "--to", "9", config=False)
    assert unknown.returncode == 1 and "generation 9 is unknown; default has 1 (good), 2 (current)" in unknown.stderr
    assert operator.run("pause", config=False).returncode == 1
    shown = json.loads(operator.run("history", "--json", config=False).stdout)
    events = shown["events"]
    assert [event["at"] for event in events] == sorted(event["at"] for event in events)
    begun = [(event["rollout"], event["reason"]) for event in events if event["event"].endswith(" begins")]
    assert begun == [("rollout-1", "shorter drafts"), ("rollout-2", ""), ("rollout-3", "it was better")]
    assert all("@" in event["actor"] for event in events if event["event"].endswith(" begins"))
    assert [one["number"] for one in shown["generations"]["default"]] == [1, 2, 3]
    table = operator.run("history", config=False).stdout
    assert "rollback begins" in table and "it was better" in table
