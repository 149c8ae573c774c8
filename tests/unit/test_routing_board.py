"""The board: accounts that add up, shares that follow free capacity, prefixes that find their replica."""

import random
from collections import Counter, deque
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from deployments.routing.board import FULL_LONGEST_S, SUSPECT_LONGEST_S
from deployments.routing.facts import ReplicaFacts, ReplicaLoad
from deployments.routing.need import NO_KV, RequestNeed
from deployments.routing.reservation import Known, Reservation
from tests.routing_fleet import Fleet, facts, request

UNLIKE = {"small": 6_000, "middle": 12_000, "large": 24_000}


def unlike_fleet(**board: Any) -> Fleet:
    return Fleet(**board).with_replicas(**{name: facts(blocks) for name, blocks in UNLIKE.items()})


def mixed_lengths(count: int, seed: int = 1) -> list[int]:
    chance = random.Random(seed)
    return [int(chance.choice((50, 200, 1000, 4000)) * chance.uniform(0.5, 1.5)) for _ in range(count)]


def assert_shares(placed: Counter[str], weights: dict[str, float], *, within: float) -> None:
    total = sum(weights.values())
    for name, weight in weights.items():
        ideal = placed.total() * weight / total
        assert abs(placed[name] - ideal) <= within * ideal, f"{name}: {placed[name]}, ideal {ideal:.1f} of {placed}"


@pytest.mark.parametrize("at_once", [1, 4, 16, 64, 400])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_400_requests_of_mixed_length_are_shared_out_by_capacity(at_once: int, seed: int) -> None:
    fleet = unlike_fleet()
    placed: Counter[str] = Counter()
    tokens: Counter[str] = Counter()
    running: deque[Reservation] = deque()
    for length in mixed_lengths(400, seed):
        if len(running) == at_once:
            fleet.board.release(running.popleft())
        reservation = fleet.board.reserve(request(length))
        assert reservation is not None
        running.append(reservation)
        placed[reservation.replica_id] += 1
        tokens[reservation.replica_id] += reservation.tokens
    weights = {name: float(blocks) for name, blocks in UNLIKE.items()}
    assert_shares(placed, weights, within=0.1)
    assert_shares(tokens, weights, within=0.15)
    fleet.board.check_integrity()


def test_what_is_in_use_already_takes_its_share_away() -> None:
    fleet = unlike_fleet()
    fleet.report("large", kv_usage=0.75)
    placed: Counter[str] = Counter()
    for length in mixed_lengths(400):
        reservation = fleet.board.reserve(request(length // 4))
        assert reservation is not None
        placed[reservation.replica_id] += 1
        fleet.board.release(reservation)
    assert_shares(placed, {"small": 6_000, "middle": 12_000, "large": 6_000}, within=0.1)


def test_prefixes_are_reused_at_least_80_percent_as_often_as_if_they_were_never_left() -> None:
    fleet = unlike_fleet()
    chance = random.Random(5)
    seen: set[tuple[int, str]] = set()
    groups: set[int] = set()
    running: deque[Reservation] = deque()
    hits = ideal = 0
    for _ in range(400):
        group = chance.randrange(24)
        reservation = fleet.board.reserve(request(chance.randrange(400, 3000), prefix=(group, group + 100)))
        assert reservation is not None
        hits += (group, reservation.replica_id) in seen
        ideal += group in groups
        seen.add((group, reservation.replica_id))
        groups.add(group)
        running.append(reservation)
        if len(running) > 60:
            fleet.board.release(running.popleft())
    assert hits >= 0.8 * ideal, f"{hits} hits, {ideal} with a replica for each prefix"


def test_a_prefix_leaves_its_replica_once_that_is_clearly_fuller() -> None:
    fleet = Fleet(sticky_margin=0.25).with_replicas(a=facts(1000), b=facts(1000))
    went = []
    for _ in range(40):
        reservation = fleet.board.reserve(request(64, prefix=(7,)))
        assert reservation is not None
        went.append(reservation.replica_id)
    first = went[0]
    alone = went.index("b" if first == "a" else "a")
    fullness_then = alone * facts(1000).blocks(64) / 1000
    assert 0.2 <= fullness_then <= 0.3, f"left at {fullness_then}"


def test_a_prefix_means_nothing_to_engines_that_do_not_cache_them() -> None:
    fleet = Fleet().with_replicas(a=facts(1000, reuses_prefixes=False), b=facts(1000, reuses_prefixes=False))
    went = [fleet.board.reserve(request(64, prefix=(7,))) for _ in range(10)]
    assert Counter(each.replica_id for each in went if each) == {"a": 5, "b": 5}


def test_a_long_request_goes_only_where_it_can_be_held() -> None:
    fleet = Fleet().with_replicas(small=facts(60), large=facts(1000))
    long = request(8000)
    assert facts(60).blocks(8000) > 60
    assert fleet.board.holders(long) == {"large"}
    for _ in range(3):
        reservation = fleet.board.reserve(long)
        assert reservation is not None and reservation.replica_id == "large"
    assert fleet.board.never_fits(request(9000)) and not fleet.board.never_fits(long)


def test_an_output_that_would_exceed_the_model_is_cut_there() -> None:
    fleet = Fleet().with_replicas(a=facts(1000))
    reservation = fleet.board.reserve(request(12_000, output=11_000))
    assert reservation is not None and reservation.blocks == facts(1000).blocks(8192)


def test_a_request_of_more_sequences_than_the_replica_has_takes_all_of_it() -> None:
    fleet = Fleet().with_replicas(a=facts(100))
    reservation = fleet.board.reserve(request(64, sequences=50))
    assert reservation is not None and reservation.blocks == 100
    assert fleet.board.reserve(request(64)) is None


def test_sequences_run_out_as_blocks_do() -> None:
    fleet = Fleet().with_replicas(a=facts(1000, max_num_seqs=2))
    assert fleet.board.reserve(request(64)) and fleet.board.reserve(request(64))
    assert fleet.board.reserve(request(64)) is None
    assert fleet.board.reserve(NO_KV) is not None


def test_a_replica_reports_what_other_ingresses_reserved() -> None:
    fleet = Fleet().with_replicas(a=facts(100))
    fleet.report("a", reserved={"other": (80, 4), "here": (10, 1)}, running=5, kv_usage=0.9)
    assert fleet.board.fullness() == {"a": 0.8}
    assert fleet.board.reserve(request(64)) is not None
    assert fleet.board.reserve(request(64)) is None


def test_use_beyond_reservations_counts_until_the_next_report() -> None:
    fleet = Fleet().with_replicas(a=facts(100))
    reservation = fleet.board.reserve(request(64))
    assert reservation is not None
    fleet.report("a", reserved={"here": (reservation.blocks, 1)}, running=1, kv_usage=0.5)
    assert fleet.board.fullness() == {"a": 0.5}
    fleet.board.release(reservation)
    assert fleet.board.fullness() == {"a": (50 - reservation.blocks) / 100}
    fleet.report("a", running=0, kv_usage=0.0)
    assert fleet.board.fullness() == {"a": 0.0}


def test_an_unhealthy_replica_gets_nothing() -> None:
    fleet = Fleet().with_replicas(a=facts(100))
    fleet.report("a", healthy=False)
    assert fleet.board.reserve(request(64)) is None and fleet.board.reserve(NO_KV) is None
    assert not fleet.board.can_serve


def test_a_suspect_gets_nothing_until_it_reports_again() -> None:
    fleet = Fleet(suspect_s=1.0).with_replicas(a=facts(100))
    fleet.board.suspect("a")
    fleet.clock.now += 0.5
    fleet.report("a")
    assert fleet.board.reserve(request(64)) is None, "this report may be from before"
    fleet.clock.now += 5
    fleet.board.update("pool", fleet.known)
    assert fleet.board.reserve(request(64)) is None, "this is no report"
    fleet.report("a")
    assert fleet.board.reserve(request(64)) is not None


def test_a_suspect_that_never_reports_is_tried_again_late() -> None:
    fleet = Fleet().with_replicas(a=facts(100))
    fleet.board.suspect("a")
    fleet.clock.now += SUSPECT_LONGEST_S - 1
    assert not fleet.board.can_serve
    fleet.clock.now += 1
    assert fleet.board.can_serve and fleet.board.reserve(request(64)) is not None


def test_a_full_replica_gets_nothing_until_it_reports_and_is_no_suspect() -> None:
    fleet = Fleet().with_replicas(a=facts(100))
    refused = fleet.board.reserve(request(64))
    assert refused is not None and fleet.board.refused(refused)
    assert fleet.board.reserve(request(64)) is None and fleet.board.reserve(NO_KV) is None
    assert fleet.board.can_serve and fleet.board.free_tokens() == {} and fleet.board.reserved == 0
    assert not fleet.board.refused(refused) and not fleet.board.release(refused)
    fleet.report("a")
    assert fleet.board.reserve(request(64)) is not None


def test_a_full_replica_is_tried_again_once_a_request_on_it_has_ended() -> None:
    fleet = Fleet().with_replicas(a=facts(100))
    running, refused = fleet.board.reserve(NO_KV), fleet.board.reserve(request(64))
    assert running is not None and refused is not None and fleet.board.refused(refused)
    assert fleet.board.reserve(request(64)) is None
    fleet.board.release(running)
    assert fleet.board.reserve(request(64)) is not None
    fleet.board.check_integrity()


def test_a_full_replica_that_nothing_is_heard_of_is_tried_again() -> None:
    fleet = Fleet().with_replicas(a=facts(100))
    refused = fleet.board.reserve(request(64))
    assert refused is not None and fleet.board.refused(refused)
    fleet.clock.now += FULL_LONGEST_S
    assert fleet.board.reserve(request(64)) is not None


def test_a_draining_replica_gets_nothing_and_is_no_suspect() -> None:
    fleet = unlike_fleet()

    def asked(need: RequestNeed) -> set[str]:
        return {each.replica_id for each in [fleet.board.reserve(need) for _ in range(30)] if each}

    fleet.report("large", draining=True)
    assert asked(request(64)) == {"small", "middle"} == set(fleet.board.free_tokens())
    fleet.clock.now += SUSPECT_LONGEST_S
    assert asked(NO_KV) == {"small", "middle"}
    fleet.report("large", draining=False)
    assert "large" in asked(NO_KV) and "large" in asked(request(64))


def test_a_replica_that_refused_a_request_for_draining_gets_nothing_until_it_says_otherwise() -> None:
    fleet = Fleet().with_replicas(a=facts(100))
    running, refused = fleet.board.reserve(NO_KV), fleet.board.reserve(request(64))
    assert running is not None and refused is not None and fleet.board.draining(refused)
    assert not fleet.board.can_serve and fleet.board.fullness() == {"a": 0}
    fleet.board.release(running)
    fleet.report("a")
    assert fleet.board.reserve(request(64)) is None, "that report may be from before"
    fleet.clock.now += 1
    fleet.report("a", draining=True)
    assert fleet.board.reserve(request(64)) is None
    fleet.report("a", draining=False)
    assert fleet.board.reserve(request(64)) is not None
    assert not fleet.board.draining(refused)
    fleet.board.check_integrity()


def test_a_draining_replica_that_nothing_is_heard_of_is_tried_again() -> None:
    fleet = Fleet().with_replicas(a=facts(100))
    refused = fleet.board.reserve(request(64))
    assert refused is not None and fleet.board.draining(refused)
    fleet.clock.now += FULL_LONGEST_S
    assert fleet.board.reserve(request(64)) is not None


def test_a_replica_that_runs_another_engine_is_counted_by_that_ones_blocks() -> None:
    fleet = Fleet().with_replicas(a=facts(1000))
    old = fleet.board.reserve(request(4000, prefix=(1, 2)))
    assert old is not None
    fleet.report("a", kv_usage=0.9)
    fleet.known["a"] = fleet.known["a"]._replace(facts=facts(old.blocks - 1, max_model_len=100))
    fleet.report("a", kv_usage=0.0)
    fleet.board.check_integrity()
    assert fleet.board.max_model_len == 100 and fleet.board.never_fits(request(4000))
    assert fleet.board.reserve(request(64)) is None, "an answer of the old engine is still on its way"
    fleet.board.release(old)
    assert fleet.board.fullness() == {"a": 0} and fleet.board.reserve(request(64)) is not None
    assert fleet.board._prefixes.holders((1, 2), {"a"}) == ()
    fleet.board.check_integrity()


def test_a_switched_replicas_facts_travel_with_its_load_and_only_then() -> None:
    assert "facts" not in ReplicaLoad(sequence=3).to_stats()
    load = ReplicaLoad(sequence=3, draining=True, facts=facts(7).to_metadata())
    assert ReplicaLoad.from_stats(load.to_stats()) == load


@pytest.mark.parametrize(("limit", "most"), [(28, 16), (24, 16), (12, 4), (9, 1), (3, 1)])
def test_places_are_left_for_requests_without_kv(limit: int, most: int) -> None:
    fleet = Fleet()
    fleet.board.update("pool", {"a": Known(facts(1000, max_num_seqs=16), ReplicaLoad(), limit)})
    placed = [fleet.board.reserve(request(64)) for _ in range(20)]
    assert sum(each is not None for each in placed) == most
    assert fleet.board.reserve(NO_KV) is not None


def test_requests_without_kv_are_spread() -> None:
    fleet = unlike_fleet()
    went = [fleet.board.reserve(NO_KV) for _ in range(9)]
    assert Counter(each.replica_id for each in went if each) == {name: 3 for name in UNLIKE}
    assert all(fullness == 0 for fullness in fleet.board.fullness().values())


def test_estimates_come_from_what_replicas_measured() -> None:
    fleet = unlike_fleet()
    fleet.report("small", bytes_per_token=2.0, mean_output_tokens=40.0, measured_requests=5000)
    assert fleet.board.estimates.bytes_per_token == pytest.approx(2.0, abs=0.01)
    assert fleet.board.estimates.output_tokens == pytest.approx(40.0, abs=1)


def test_metadata_and_stats_arrive_as_they_were_sent() -> None:
    one = facts(100)
    assert ReplicaFacts.from_metadata(one.to_metadata()) == one
    load = ReplicaLoad(sequence=3, kv_usage=0.5, reserved={"x": (1, 2)}, bytes_per_token=3.0)
    assert ReplicaLoad.from_stats(load.to_stats()) == load and ReplicaLoad.from_stats({}) == ReplicaLoad()
    with pytest.raises(ValueError, match="colour"):
        ReplicaFacts.from_metadata(one.to_metadata() | {"colour": "red"})
    with pytest.raises(ValueError, match="0 KV blocks"):
        ReplicaFacts.from_metadata(facts(0).to_metadata())


class BoardMachine(RuleBasedStateMachine):
    """Requests, releases, reports, failures and replicas that come and go, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.fleet = Fleet()
        self.held: dict[int, Reservation] = {}
        self.released: list[Reservation] = []
        self.names = 0

    @rule(blocks=st.integers(12, 400), seqs=st.integers(1, 20))
    def join(self, blocks: int, seqs: int) -> None:
        if len(self.fleet.known) < 5:
            self.names += 1
            self.fleet.with_replicas(**{f"r{self.names}": facts(blocks, max_num_seqs=seqs)})

    @precondition(lambda self: self.fleet.known)
    @rule(data=st.data(), back=st.booleans())
    def leave(self, data: st.DataObject, back: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.fleet.known)))
        known: Known = self.fleet.leave(name)
        if back:
            self.fleet.known[name] = known
            self.fleet.board.update("pool", self.fleet.known)

    @rule(tokens=st.integers(1, 9000), sequences=st.integers(0, 4), prefix=st.integers(0, 3))
    def reserve(self, tokens: int, sequences: int, prefix: int) -> None:
        need = request(tokens, sequences=sequences, prefix=(prefix,)) if sequences else NO_KV
        reservation = self.fleet.board.reserve(need)
        if reservation is not None:
            assert reservation.replica_id in self.fleet.known and reservation.number not in self.held
            assert reservation.replica_id in self.fleet.board.holders(need)
            self.held[reservation.number] = reservation

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        reservation = self.held.pop(data.draw(st.sampled_from(sorted(self.held))))
        assert self.fleet.board.release(reservation)
        self.released.append(reservation)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def refuse(self, data: st.DataObject) -> None:
        reservation = self.held.pop(data.draw(st.sampled_from(sorted(self.held))))
        could_serve = self.fleet.board.can_serve
        assert self.fleet.board.refused(reservation) and self.fleet.board.can_serve == could_serve
        self.released.append(reservation)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def refuse_for_draining(self, data: st.DataObject) -> None:
        reservation = self.held.pop(data.draw(st.sampled_from(sorted(self.held))))
        assert self.fleet.board.draining(reservation)
        assert reservation.replica_id not in self.fleet.board.free_tokens()
        self.released.append(reservation)

    @precondition(lambda self: self.fleet.known)
    @rule(data=st.data(), blocks=st.integers(12, 400), seqs=st.integers(1, 20))
    def run_another_engine(self, data: st.DataObject, blocks: int, seqs: int) -> None:
        name = data.draw(st.sampled_from(sorted(self.fleet.known)))
        known = self.fleet.known[name]
        self.fleet.known[name] = known._replace(facts=facts(blocks, max_num_seqs=seqs))
        self.fleet.report(name)

    @precondition(lambda self: self.released)
    @rule(data=st.data())
    def release_twice(self, data: st.DataObject) -> None:
        before = self.fleet.board.fullness()
        assert not self.fleet.board.release(data.draw(st.sampled_from(self.released)))
        assert self.fleet.board.fullness() == before

    @precondition(lambda self: self.fleet.known)
    @rule(data=st.data(), usage=st.floats(0, 1), others=st.integers(0, 50), healthy=st.booleans(), drains=st.booleans())
    def report(self, data: st.DataObject, usage: float, others: int, healthy: bool, drains: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.fleet.known)))
        load = {"kv_usage": usage, "reserved": {"other": (others, 1)}, "healthy": healthy, "draining": drains}
        self.fleet.report(name, **load)
        if drains or not healthy:
            assert name not in self.fleet.board.free_tokens()

    @precondition(lambda self: self.fleet.known)
    @rule(data=st.data(), seconds=st.floats(0, 40))
    def suspect(self, data: st.DataObject, seconds: float) -> None:
        self.fleet.board.suspect(data.draw(st.sampled_from(sorted(self.fleet.known))))
        self.fleet.clock.now += seconds

    @invariant()
    def nothing_is_lost_or_overbooked(self) -> None:
        self.fleet.board.check_integrity()
        assert self.fleet.board.reserved == len(self.held)


TestBoardMachine = BoardMachine.TestCase
TestBoardMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
