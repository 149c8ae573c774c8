"""Demand to targets: in bounds, monotone, settled after a step, cheapest first up, dearest first down."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deployments.autoscaling.decide import Demand, Pool, decide_targets, lay_out, share_of_replica

CHEAP = Pool(name="cheap", cost=1.0, kv_tokens=10_000, max_requests=100, min_replicas=0, max_replicas=4, target=0)
DEAR = replace(CHEAP, name="dear", cost=10.0, kv_tokens=50_000, max_replicas=2)
FLEET = (CHEAP, DEAR)


def requests(count: float, tokens: float, *pools: str) -> Demand:
    return Demand(requests=count, kv_tokens=dict.fromkeys(pools or ("cheap", "dear"), tokens))


def targets(pools: tuple[Pool, ...], *demands: Demand) -> dict[str, int]:
    return {name: target.replicas for name, target in decide_targets(pools, demands).items()}


def at(pools: tuple[Pool, ...], counts: dict[str, int]) -> tuple[Pool, ...]:
    return tuple(replace(pool, target=counts[pool.name]) for pool in pools)


def settled(pools: tuple[Pool, ...], *demands: Demand) -> dict[str, int]:
    """Targets once every pool had its turn: one pool a step at most goes down."""
    for _ in range(len(pools) + 1):
        pools = at(pools, targets(pools, *demands))
    return targets(pools, *demands)


def test_nothing_is_asked_for_without_demand() -> None:
    assert targets(FLEET) == {"cheap": 0, "dear": 0}


def test_a_queue_alone_brings_up_the_cheapest_pool_from_zero() -> None:
    assert targets(FLEET, requests(1, 100)) == {"cheap": 1, "dear": 0}


def test_a_request_too_long_for_a_pool_does_not_count_as_served_by_it() -> None:
    assert targets(FLEET, requests(1, 20_000)) == {"cheap": 0, "dear": 1}


def test_the_next_pool_comes_only_when_the_cheaper_is_at_its_most() -> None:
    assert targets(FLEET, requests(31, 1_000)) == {"cheap": 4, "dear": 0}
    assert targets(FLEET, requests(33, 1_000)) == {"cheap": 4, "dear": 1}


def test_the_least_replicas_of_a_dear_pool_are_used_before_a_cheap_one_is_started() -> None:
    fleet = (CHEAP, replace(DEAR, min_replicas=1, target=1))
    assert targets(fleet, requests(30, 1_000)) == {"cheap": 0, "dear": 1}


def test_long_requests_take_their_place_before_short_ones_fill_it() -> None:
    only_room = (replace(DEAR, min_replicas=1, max_replicas=1, target=1), CHEAP)
    assert targets(only_room, requests(40, 1_000), requests(1, 40_000, "dear")) == {"cheap": 4, "dear": 1}


def test_replicas_that_are_starting_count_so_a_burst_asks_once() -> None:
    first = targets(FLEET, requests(12, 1_000))
    assert first == {"cheap": 2, "dear": 0}
    assert targets(at(FLEET, first), requests(12, 1_000)) == first


def test_the_number_of_requests_counts_where_they_are_small() -> None:
    few_at_once = (replace(CHEAP, max_requests=10),)
    assert targets(few_at_once, requests(20, 1, "cheap")) == {"cheap": 3}


@pytest.mark.parametrize(("tokens", "share"), [(1_000, 0.125), (6_000, 1.0), (9_000, 1.0), (10_000, 1.0), (3_400, 0.5)])
def test_requests_share_a_replica_only_as_whole_requests(tokens: float, share: float) -> None:
    assert share_of_replica(CHEAP, requests(1, tokens), 0.8) == share


def test_down_goes_the_dearest_first_and_the_cheaper_waits_for_it() -> None:
    full = at(FLEET, {"cheap": 4, "dear": 2})
    assert targets(full) == {"cheap": 4, "dear": 0}
    assert targets(at(FLEET, {"cheap": 4, "dear": 0})) == {"cheap": 0, "dear": 0}


def test_a_replica_is_kept_while_the_rest_would_be_fuller_than_the_margin_allows() -> None:
    fleet = at(FLEET, {"cheap": 3, "dear": 0})
    assert targets(fleet, requests(15, 1_000)) == {"cheap": 3, "dear": 0}
    assert targets(fleet, requests(13, 1_000)) == {"cheap": 2, "dear": 0}


def test_the_fleet_never_shrinks_below_what_requests_hold() -> None:
    fleet = at(FLEET, {"cheap": 4, "dear": 2})
    held = (requests(30, 1_000), requests(2, 30_000, "dear"))
    got = settled(fleet, *held)
    assert got["dear"] * DEAR.kv_tokens >= 60_000
    assert sum(pool.kv_tokens * got[pool.name] for pool in fleet) >= 90_000


def test_demand_beyond_the_fleet_asks_for_all_of_it_and_no_more() -> None:
    assert targets(FLEET, requests(1_000, 1_000)) == {"cheap": 4, "dear": 2}
    assert lay_out(FLEET, [requests(1_000, 1_000)], 0.8).unplaced == pytest.approx(1_000 - 32 - 80)
    assert lay_out(FLEET, [requests(3, 60_000)], 0.8).unplaced == 3


def test_a_pool_whose_starts_are_stuck_goes_on_asking_while_another_helps_out() -> None:
    stuck = (replace(CHEAP, target=2, startable=1), DEAR)
    assert targets(stuck, requests(12, 1_000)) == {"cheap": 2, "dear": 1}
    assert targets((replace(CHEAP, target=2), replace(DEAR, target=1)), requests(12, 1_000)) == {"cheap": 2, "dear": 0}


def test_a_change_says_why_and_no_change_says_nothing() -> None:
    target = decide_targets(FLEET, [requests(12, 1_000)])
    assert target["cheap"].reason == (
        "cheap: 0 -> 2 replicas (of 0 to 4): 12 requests with 12,000 KV tokens in the fleet would fit here, "
        "a replica holds 10,000, 80% of it planned for, at 100 per million"
    )
    assert target["dear"].reason == ""


def test_a_margin_as_large_as_the_utilisation_is_refused() -> None:
    with pytest.raises(ValueError, match=r"utilisation 0.8 and margin 0.8"):
        decide_targets(FLEET, [], margin=0.8)


@st.composite
def fleets(draw: st.DrawFn) -> tuple[Pool, ...]:
    pools = []
    for index in range(draw(st.integers(1, 4))):
        least, most = sorted((draw(st.integers(0, 5)), draw(st.integers(1, 12))))
        pools.append(
            Pool(
                name=f"pool{index}",
                cost=draw(st.sampled_from([0.5, 1.0, 3.0, 10.0])),
                kv_tokens=draw(st.sampled_from([1_000.0, 5_000.0, 40_000.0, 650_000.0])),
                max_requests=draw(st.sampled_from([1, 16, 256])),
                min_replicas=least,
                max_replicas=max(1, most),
                target=draw(st.integers(least, max(1, most))),
                startable=draw(st.none() | st.integers(0, 12)),
            )
        )
    return tuple(pools)


DEMANDS = st.lists(st.tuples(st.integers(1, 500), st.sampled_from([1, 300, 900, 4_000, 30_000, 700_000])), max_size=5)


def demands_in(fleet: tuple[Pool, ...], drawn: list[tuple[int, int]]) -> list[Demand]:
    return [requests(count, tokens, *(pool.name for pool in fleet)) for count, tokens in drawn]


@given(fleets(), DEMANDS)
def test_targets_are_within_bounds(fleet: tuple[Pool, ...], drawn: list[tuple[int, int]]) -> None:
    got = targets(fleet, *demands_in(fleet, drawn))
    assert set(got) == {pool.name for pool in fleet}
    assert all(pool.min_replicas <= got[pool.name] <= pool.max_replicas for pool in fleet)


@given(fleets(), DEMANDS)
def test_constant_demand_settles(fleet: tuple[Pool, ...], drawn: list[tuple[int, int]]) -> None:
    demands = demands_in(fleet, drawn)
    got = settled(fleet, *demands)
    assert targets(at(fleet, got), *demands) == got


@given(fleets(), DEMANDS)
def test_no_pool_goes_both_ways_under_constant_demand(fleet: tuple[Pool, ...], drawn: list[tuple[int, int]]) -> None:
    demands = demands_in(fleet, drawn)
    steps = [fleet]
    for _ in range(len(fleet) + 1):
        steps.append(at(fleet, targets(steps[-1], *demands)))
    for index in range(len(fleet)):
        line = [step[index].target for step in steps]
        assert line in (sorted(line), sorted(line, reverse=True))


@settings(max_examples=300)
@given(fleets(), DEMANDS, st.integers(0, 4), st.integers(1, 300))
def test_more_demand_never_settles_at_fewer_replicas(
    fleet: tuple[Pool, ...], drawn: list[tuple[int, int]], which: int, more: int
) -> None:
    demands = demands_in(fleet, drawn)
    grown = list(demands)
    if which < len(grown):
        grown[which] = replace(grown[which], requests=grown[which].requests + more)
    else:
        grown += demands_in(fleet, [(more, 900)])
    before, after = settled(fleet, *demands), settled(fleet, *grown)
    assert all(after[name] >= before[name] for name in before)


@given(fleets(), DEMANDS)
def test_a_settled_fleet_has_room_for_all_that_fits(fleet: tuple[Pool, ...], drawn: list[tuple[int, int]]) -> None:
    fleet = tuple(replace(pool, startable=None) for pool in fleet)
    demands = demands_in(fleet, drawn)
    layout = lay_out(fleet, demands, 0.8)
    got = settled(fleet, *demands)
    for pool in fleet:
        assert got[pool.name] >= layout.replicas[pool.name] - 1e-6
