"""Configurations go out to a running fleet under load; whatever is killed or fails, it ends on one generation."""

import os
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from benchmarks.rollout_watch import Watch
from deployments.config import AppConfig
from tests.cluster.conftest import until
from tests.cluster.rolling import REQUESTS_PER_S, Rolling, chats, fleet_config, rolling

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

# A phase in which something is killed lasts as long as an engine's start at least, and is not missed.
SLOW_START = {"start_s": 1.0}


@pytest.fixture(scope="module")
def fleet(deployed: Callable[[AppConfig], Any], pair_folder: Path) -> Iterator[Rolling]:
    changed = partial(fleet_config, pair_folder)
    with deployed(changed()) as app, rolling(app, changed, chats(), REQUESTS_PER_S) as fleet:
        yield fleet


@pytest.fixture
def watch(fleet: Rolling) -> Iterator[Watch]:
    with fleet.watched() as watch:
        yield watch


def test_another_k_goes_out_by_canaries_and_waves_and_no_request_fails(fleet: Rolling, watch: Watch) -> None:
    before, sent = fleet.settled(), len(fleet.load.outcomes)
    pids = {each["replica"]: fleet.pid_of(each["replica"]) for each in before["replicas"]}
    name = fleet.begin(num_speculative_tokens=5)
    last = watch.until_over(name, 200)
    after = fleet.settled()
    assert (last["name"], last["phase"], last["failure"]) == (name, "done", "")
    assert fleet.passed(name) == ["canary", "baking", "rolling", "applying", "done"]
    assert after["current"] == last["to"] != before["current"]
    (current,) = [each for each in after["generations"] if each["number"] == after["current"]]
    assert {pool["num_speculative_tokens"] for pool in current["pools"].values()} == {5}
    assert {each["replica"]: fleet.pid_of(each["replica"]) for each in after["replicas"]} == pids
    assert len(fleet.sent_since(sent)) > 30 and fleet.failed(sent) == []


FAILURES: dict[str, tuple[dict[str, Any], str, tuple[str, ...]]] = {
    "start": ({"fail": "the drafter's weights are cut off"}, "replica start", ("the drafter's weights are cut off",)),
    "plan": ({"num_blocks": 3}, "replica start", ("predicted != actual: num_blocks: planned 307, got 3",)),
    "errors": ({"error_rate": 0.5}, "error rate", ()),
    "acceptance": ({"acceptance": [0.1] * 7}, "acceptance", ()),
    "death": ({"die_after_s": 2.5}, "engine deaths", ("died after 2.5 s",)),
}


@pytest.mark.parametrize("kind", FAILURES)
def test_a_generation_that_is_not_healthy_is_taken_back_and_the_gate_says_why(
    fleet: Rolling, watch: Watch, kind: str
) -> None:
    fake, gate, told = FAILURES[kind]
    before, sent = fleet.settled(), len(fleet.load.outcomes)
    last = watch.until_over(fleet.begin(fake=fake), 200)
    after = fleet.settled()
    assert last["phase"] == "rolled back" and after["current"] == before["current"]
    assert gate in last["failure"] and all(text in last["failure"] for text in told), last["failure"]
    if kind in ("start", "plan", "acceptance"):
        assert fleet.failed(sent) == []


def test_what_runs_is_not_rolled_out_again_and_two_at_once_are_one_too_many(fleet: Rolling, watch: Watch) -> None:
    known = fleet.settled()
    current = known["current"]
    (running,) = [each for each in known["generations"] if each["number"] == current]
    (k,) = {pool["num_speculative_tokens"] for pool in running["pools"].values()}
    config, same = fleet.offer(num_speculative_tokens=k)
    options = config.rollout.options()
    assert fleet.ask("begin", same, options, "test") == {"unchanged": current}
    name = fleet.begin(num_speculative_tokens=k - 1)
    _, other = fleet.offer(num_speculative_tokens=k - 1)
    assert fleet.ask("begin", other, options, "test") == {"attached": name}
    refused = fleet.ask("begin", same, options, "test")["refused"]
    assert name in refused
    assert fleet.ask("rollback", "default", None, "test")["started"] == name
    assert watch.until_over(name, 200)["phase"] == "rolled back"
    assert fleet.settled()["current"] == current


def test_a_planner_that_is_killed_goes_on_where_it_was(fleet: Rolling, watch: Watch) -> None:
    sent, starts = len(fleet.load.outcomes), fleet.ask("status")["starts"]
    name = fleet.begin(num_speculative_tokens=6, fake=SLOW_START)
    for kills, phase in enumerate(("canary", "rolling"), start=1):
        watch.until_phase(phase)
        os.kill(fleet.ask("status")["pid"], signal.SIGKILL)
        until(lambda expected=starts + kills: fleet.ask("status")["starts"] == expected, seconds=150)
    last = watch.until_over(name, 250)
    assert (last["name"], last["phase"]) == (name, "done")
    assert fleet.settled()["current"] == last["to"]
    assert fleet.failed(sent) == []


def test_ray_serves_controller_may_be_killed_in_every_phase(fleet: Rolling, watch: Watch) -> None:
    sent = len(fleet.load.outcomes)
    name = fleet.begin(num_speculative_tokens=2, fake=SLOW_START)
    for phase in ("canary", "rolling", "applying"):
        watch.until_phase(phase)
        fleet.controller().kill()
    last = watch.until_over(name, 250)
    assert (last["name"], last["phase"]) == (name, "done")
    assert fleet.settled()["current"] == last["to"]
    assert fleet.failed(sent) == []


def test_a_canary_that_is_killed_while_it_bakes_takes_the_rollout_back(fleet: Rolling, watch: Watch) -> None:
    before, sent = fleet.settled(), len(fleet.load.outcomes)
    name = fleet.begin(num_speculative_tokens=3, bake_s=20.0)  # on a busy machine the kill comes late
    watch.until_phase("baking")
    canary = watch.until(lambda known: next((r for r in known["replicas"] if r["canary"]), None), "a canary")
    os.kill(fleet.pid_of(canary["replica"]), signal.SIGKILL)
    last = watch.until_over(name, 250)
    assert last["phase"] == "rolled back" and canary["replica"] in last["failure"]
    assert fleet.settled()["current"] == before["current"]
    assert {end for end, *_ in fleet.failed(sent)} <= {"error event", "broken"}
