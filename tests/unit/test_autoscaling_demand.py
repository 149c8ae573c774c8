"""From figures to demand: what fits where, and how much of it there is."""

from dataclasses import replace

import pytest

from deployments.autoscaling.decide import Demand, share_of_replica
from deployments.autoscaling.demand import demands_of, held, pool_of, waiting
from deployments.autoscaling.facts import PoolFacts
from deployments.autoscaling.figures import Queue, ReplicaFigures
from deployments.autoscaling.shared import PoolNow
from hybrid_serve.plan.group_need import GroupNeed

FULL = GroupNeed(kind="full", block_size=100, window=None, fixed_blocks=0, kept_tokens=None)
STATES = GroupNeed(kind="mamba", block_size=8_192, window=None, fixed_blocks=5, kept_tokens=None)
SMALL = PoolFacts(
    name="small",
    model="m",
    cost=1.0,
    kv_tokens=5_000,
    num_blocks=50,
    max_requests=100,
    typical_tokens=300,
    groups=(FULL, STATES),
)
LARGE = replace(SMALL, name="large", kv_tokens=50_000, num_blocks=500)
NOW = PoolNow(
    min_replicas=0,
    max_replicas=3,
    target=1,
    running=1,
    queued=0.0,
    replicas=(),
    silent=0,
    startable=None,
    seen_at=0.0,
)


def replica(held_tokens: float, requests: float, largest: float = 0.0, kv_tokens: float = 5_000) -> ReplicaFigures:
    return ReplicaFigures(kv_tokens=kv_tokens, held_kv_tokens=held_tokens, largest_kv_tokens=largest, requests=requests)


def test_a_queue_fits_where_its_longest_does_and_weighs_by_its_mean() -> None:
    short = waiting([SMALL, LARGE], Queue(requests=2, tokens=400, longest=300))
    assert short == Demand(requests=2, kv_tokens={"small": 700, "large": 700})
    long = waiting([SMALL, LARGE], Queue(requests=2, tokens=6_000, longest=4_600))
    assert long == Demand(requests=2, kv_tokens={"large": 3_500})


def test_what_a_replica_holds_would_fit_where_its_largest_does() -> None:
    assert held([SMALL, LARGE], [replica(3_000, 3, largest=2_000)]) == [
        Demand(requests=3, kv_tokens={"small": 1_000, "large": 1_000})
    ]
    assert held([SMALL, LARGE], [replica(9_000, 3, largest=6_000)]) == [Demand(requests=3, kv_tokens={"large": 3_000})]


def test_without_a_largest_the_mean_says_where_it_fits() -> None:
    assert held([SMALL, LARGE], [replica(12_000, 2)]) == [Demand(requests=2, kv_tokens={"large": 6_000})]


def test_replicas_with_equal_choices_are_one_demand_and_idle_ones_none() -> None:
    assert held([SMALL], [replica(1_000, 1), replica(500, 2), replica(0, 0)]) == [
        Demand(requests=3, kv_tokens={"small": 500})
    ]


def test_requests_that_hold_nothing_yet_count_by_their_number() -> None:
    assert held([SMALL], [replica(0, 4)]) == [Demand(requests=4, kv_tokens={"small": 0})]


def test_a_pool_holds_what_its_replicas_report_on_the_mean() -> None:
    now = replace(NOW, replicas=(replica(0, 0, kv_tokens=4_000), replica(0, 0, kv_tokens=8_000)))
    assert pool_of(SMALL, now).kv_tokens == 6_000
    assert pool_of(SMALL, NOW).kv_tokens == 5_000


def test_all_of_it_together() -> None:
    seen = {
        "small": replace(NOW, replicas=(replica(2_000, 2),)),
        "large": replace(NOW, queued=4.0),
    }
    demands = demands_of([SMALL, LARGE], seen, [Queue(requests=1, tokens=100, longest=100)])
    assert demands == (
        Demand(requests=1, kv_tokens={"small": 600, "large": 600}),
        Demand(requests=2, kv_tokens={"small": 1_000, "large": 1_000}),
        Demand(requests=4.0, kv_tokens={"small": 800, "large": 800}),
    )


def test_a_pool_that_was_not_seen_takes_no_demand() -> None:
    assert demands_of([SMALL, LARGE], {"small": NOW}, [Queue(requests=1, tokens=6_000, longest=6_000)]) == (
        Demand(requests=1, kv_tokens={}),
    )


@pytest.mark.parametrize("blocks", range(3, 200, 7))
def test_a_request_that_takes_all_blocks_of_a_replica_fits_and_takes_one_replica(blocks: int) -> None:
    planned = replace(SMALL, groups=(FULL,), num_blocks=317, kv_tokens=30_119)
    seen = replace(NOW, replicas=(replica(0, 0, kv_tokens=blocks * 30_119 / 317),))
    (demand,) = demands_of([planned], {"small": seen}, [Queue(requests=1, tokens=blocks * 100, longest=blocks * 100)])
    assert share_of_replica(pool_of(planned, seen), demand, 0.8) == 1.0
