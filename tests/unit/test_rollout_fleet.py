"""What heartbeats told: bounded, and a failure is one of the order that it followed."""

from dataclasses import replace

import pytest

from hybrid_serve.rollout import fleet as fleet_module
from hybrid_serve.rollout.fleet import LOST_AFTER_S, REMEMBER_GONE_S, SUSPECT_AFTER_S, Fleet
from hybrid_serve.rollout.wire import FailedSwitch, ReplicaRun
from tests.fleets import Clock

RUN = ReplicaRun(app="app", model="m", pool="a", digest="old", phase="serving")
FAILED = replace(RUN, failed=FailedSwitch(digest="new", reason="no drafter"))


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def fleet(clock: Clock) -> Fleet:
    return Fleet(clock)


def failure(fleet: Fleet, since: float) -> str:
    seen = fleet.seen("r")
    assert seen is not None
    return seen.failure_of("new", since)


def test_a_failure_that_is_told_after_the_order_is_the_orders(fleet: Fleet, clock: Clock) -> None:
    fleet.heard("r", RUN)
    fleet.answer("r", "new")
    clock.now += 1
    fleet.heard("r", FAILED)
    assert failure(fleet, 1000.5) == "no drafter" and failure(fleet, 1001) == ""
    clock.now += 1
    fleet.heard("r", FAILED)
    assert failure(fleet, 1001) == "", "it is the same failure"


def test_a_switch_that_fails_again_between_two_heartbeats_is_another_failure(fleet: Fleet, clock: Clock) -> None:
    fleet.heard("r", RUN)
    fleet.heard("r", FAILED)
    clock.now += 10
    fleet.answer("r", "new")
    assert failure(fleet, 0) == ""
    clock.now += 1
    fleet.heard("r", FAILED)
    assert failure(fleet, 1010) == "no drafter"


def test_a_failure_from_before_the_planner_is_none_of_an_order(fleet: Fleet, clock: Clock) -> None:
    fleet.heard("r", FAILED)
    assert failure(fleet, 0) == ""


def test_a_silent_replica_serves_no_more_and_is_then_gone(fleet: Fleet, clock: Clock) -> None:
    fleet.heard("r", RUN)
    assert fleet.by_app()["app"]["r"].serving
    clock.now += SUSPECT_AFTER_S + 1
    assert not fleet.by_app()["app"]["r"].serving
    clock.now += LOST_AFTER_S
    assert fleet.by_app() == {} and not fleet.gone()["r"].orderly
    fleet.heard("r", RUN)
    assert "r" in fleet.by_app()["app"] and "r" not in fleet.gone()
    fleet.forget("r")
    fleet.forget("r")
    assert fleet.gone()["r"].orderly
    clock.now += REMEMBER_GONE_S + 1
    fleet.by_app()
    assert not fleet.gone()
    fleet.check_integrity()


@pytest.mark.parametrize("dead, phase", [("killed", "serving"), ("", "draining"), ("", "switching"), ("", "starting")])
def test_only_a_live_engine_serves(fleet: Fleet, dead: str, phase: str) -> None:
    fleet.heard("r", replace(RUN, dead=dead, phase=phase))  # type: ignore[arg-type]
    assert not fleet.by_app()["app"]["r"].serving


def test_it_is_bounded(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_module, "MAX_REPLICAS", 5)
    monkeypatch.setattr(fleet_module, "MAX_GONE", 3)
    for number in range(20):
        fleet.heard(f"r{number}", RUN)
        fleet.check_integrity()
    assert list(fleet.by_app()["app"]) == [f"r{number}" for number in range(15, 20)] and len(fleet) == 5
