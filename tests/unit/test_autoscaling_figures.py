"""What replicas and ingress tell, and what the controller keeps of it."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from deployments.autoscaling.facts import PoolFacts
from deployments.autoscaling.figures import (
    Queue,
    ReplicaFigures,
    ingress_stats,
    queues_from_stats,
    replica_figures,
)
from deployments.autoscaling.shared import FRESH_S, AppFigures, Series, newest
from deployments.config import AppConfig
from deployments.fleet import plan_model
from hybrid_serve.plan.capacity import request_blocks
from tests.demo_app import app_values


@dataclass(frozen=True)
class Waiting:
    model: str
    tokens: int
    sequences: int = 1


@dataclass(frozen=True)
class Point:
    """As ray.serve._private.common.TimeStampedValue."""

    timestamp: float
    value: float


def test_a_queue_travels_by_model_and_octave_of_length() -> None:
    stats = ingress_stats([Waiting("a", 100), Waiting("a", 120), Waiting("a", 5_000, 3), Waiting("org/b|c", 100)])
    assert all(isinstance(value, float) for value in stats.values())
    assert queues_from_stats(stats) == {
        ("a", 7): Queue(requests=2, tokens=220, longest=120),
        ("a", 13): Queue(requests=3, tokens=15_000, longest=5_000),
        ("org/b|c", 7): Queue(requests=1, tokens=100, longest=100),
    }


def test_a_request_that_holds_no_kv_waits_too() -> None:
    assert queues_from_stats(ingress_stats([Waiting("a", 0, 0)])) == {("a", 1): Queue(requests=1, tokens=1, longest=1)}


def test_an_empty_queue_is_told_too() -> None:
    assert ingress_stats([]) and queues_from_stats(ingress_stats([])) == {}


def test_names_of_others_are_left_alone() -> None:
    assert queues_from_stats({"running_requests": 3.0, "waiting|x|requests|m": 1.0, "waiting|3|requests|m": 1.0}) == {}


def test_a_replica_holds_what_is_in_use_or_reserved_whichever_is_more() -> None:
    told = {"kv_tokens": 1_000, "num_blocks": 100, "largest_blocks": 5.0, "running": 2, "waiting": 0}
    assert replica_figures(kv_usage=0.5, reserved_blocks=10, **told).held_kv_tokens == 500
    assert replica_figures(kv_usage=0.5, reserved_blocks=70, **told).held_kv_tokens == 700
    assert replica_figures(kv_usage=0.5, reserved_blocks=0, **(told | {"waiting": 2})).held_kv_tokens == 1_000
    assert replica_figures(kv_usage=0.5, reserved_blocks=0, **told).largest_kv_tokens == 50


def test_a_replicas_figures_travel_and_an_incomplete_report_says_nothing() -> None:
    figures = ReplicaFigures(kv_tokens=10.0, held_kv_tokens=2.0, largest_kv_tokens=1.0, requests=3.0)
    assert ReplicaFigures.from_stats({**figures.to_stats(), "running_requests": 1.0}) == figures
    assert ReplicaFigures.from_stats({"kv_tokens": 10.0}) is None
    assert ReplicaFigures.from_stats({**figures.to_stats(), "kv_tokens": 0.0}) is None


@pytest.mark.parametrize("tokens", [1, 15, 16, 17, 512, 2047, 2048])
def test_facts_count_blocks_as_the_planner_does(pair_folder: Path, tokens: int) -> None:
    (planned,) = plan_model(AppConfig.model_validate(app_values(pair_folder)).served[0]).pools
    plan, inputs = planned.decision.plan, planned.inputs
    assert plan is not None
    facts = PoolFacts.planned(plan, inputs, name="cpu", model="demo", cost=1.0, max_requests=16, typical_tokens=512)
    assert PoolFacts.from_json(facts.to_json()) == facts
    share = request_blocks(plan, inputs, tokens) / plan.num_blocks
    assert facts.kv_tokens_of(tokens) == pytest.approx(share * plan.kv_tokens)
    half = facts.with_kv_tokens(facts.kv_tokens / 2)
    assert half.num_blocks == plan.num_blocks / 2 and half.kv_tokens_of(tokens) == facts.kv_tokens_of(tokens)


def test_of_a_pool_without_a_plan_typical_requests_are_known() -> None:
    facts = PoolFacts.guessed(8, name="p", model="m", cost=1.0, max_requests=8, typical_tokens=500)
    assert facts.kv_tokens == 4_000 and facts.kv_tokens_of(123) == 123


def test_only_a_replicas_newest_time_counts() -> None:
    raw = {
        "still": {"r1": [Point(1.0, 1.0), Point(2.0, 5.0)], "r2": [Point(7.0, 3.0)]},
        "gone": {"r1": [Point(1.0, 9.0)]},
        "empty": {"r3": []},
    }
    assert newest(raw, str) == {
        "r1": Series(stamp=2.0, stats={"still": 5.0}),
        "r2": Series(stamp=7.0, stats={"still": 3.0}),
    }


FIGURES = ReplicaFigures(kv_tokens=100.0, held_kv_tokens=20.0, largest_kv_tokens=10.0, requests=3.0)


def told(stamp: float, figures: ReplicaFigures = FIGURES) -> Series:
    return Series(stamp=stamp, stats=figures.to_stats())


def record(app: AppFigures, now: float, target: int, reported: dict[str, Series], running: list[str]) -> None:
    app.record_pool(
        "pool",
        min_replicas=0,
        max_replicas=9,
        target=target,
        running=running,
        queued=0.0,
        reported=reported,
        start_patience_s=100.0,
        now=now,
    )


def test_a_replica_that_tells_nothing_new_is_silent_whatever_its_clock_says() -> None:
    app = AppFigures()
    record(app, 0.0, 2, {"a": told(stamp=9e9), "b": told(stamp=5.0)}, ["a", "b"])
    assert (pool := app.pool("pool", 0.0)) is not None and (len(pool.replicas), pool.silent) == (2, 0)
    later = FRESH_S + 1
    record(app, later, 2, {"a": told(stamp=9e9), "b": told(stamp=6.0)}, ["a", "b"])
    assert (pool := app.pool("pool", later)) is not None and (len(pool.replicas), pool.silent) == (1, 1)
    record(app, later + 1, 2, {"a": told(stamp=9e9 + 1)}, ["a", "b"])
    assert (pool := app.pool("pool", later + 1)) is not None and (len(pool.replicas), pool.silent) == (1, 1)


def test_figures_of_replicas_that_do_not_run_do_not_count() -> None:
    app = AppFigures()
    record(app, 0.0, 1, {"stopped": told(1.0)}, ["starting"])
    assert (pool := app.pool("pool", 0.0)) is not None and (pool.replicas, pool.silent) == ((), 1)


def test_a_pool_that_the_controller_no_longer_looks_at_is_not_known() -> None:
    app = AppFigures()
    record(app, 0.0, 0, {}, [])
    assert app.pool("pool", FRESH_S) is not None
    assert app.pool("pool", FRESH_S + 1) is None and app.pool("other", 0.0) is None


def test_starts_are_stuck_after_their_patience_without_a_newcomer() -> None:
    app = AppFigures()

    def startable(now: float, target: int, *running: str) -> int | None:
        record(app, now, target, {}, list(running))
        found = app.pool("pool", now)
        assert found is not None
        return found.startable

    assert startable(0.0, 3, "a") is None
    assert startable(99.0, 3, "a", "b") is None, "one came"
    assert startable(198.0, 3, "a", "b") is None
    assert startable(199.0, 4, "a", "b") == 2, "a higher target brings nobody"
    assert startable(200.0, 4, "a", "b", "c", "d") is None
    assert startable(201.0, 5, "a", "b", "c", "d") is None, "the clock starts again"


def test_the_queue_counts_only_if_every_ingress_replica_was_heard_of() -> None:
    app = AppFigures()
    one = Series(stamp=1.0, stats=ingress_stats([Waiting("m", 100)]))
    other = Series(stamp=1.0, stats=ingress_stats([Waiting("m", 90), Waiting("other", 90)]))
    app.record_ingress("ingress", running=["a", "b"], reported={"a": one}, now=0.0)
    assert app.queues_of("m", 0.0) is None
    app.record_ingress("ingress", running=["a", "b"], reported={"a": one, "b": other}, now=1.0)
    assert app.queues_of("m", 1.0) == [Queue(requests=2, tokens=190, longest=100)]
    app.record_ingress("ingress", running=[], reported={}, now=2.0)
    assert app.queues_of("m", 2.0) == [Queue(requests=2, tokens=190, longest=100)]
    assert app.queues_of("m", 2.0 + FRESH_S) is None
