"""The queue in front of a board: order, bounded overtaking, bounded waiting, and nothing lost."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deployments.routing.admission import Admission, Overloaded
from deployments.routing.freeing import LONGEST_RETRY_S, WINDOW_S, FreeingRate
from deployments.routing.need import NO_KV, RequestNeed
from deployments.routing.reservation import Reservation
from tests.routing_fleet import Clock, Fleet, facts, request

SMALL = facts(1).blocks(64)
"""Blocks of a request of 64 tokens."""


class Door:
    """A fleet, its queue, and the requests that were sent to it."""

    def __init__(self, *replicas: int, **options: Any) -> None:
        self.fleet = Fleet().with_replicas(**{f"r{i}": facts(blocks) for i, blocks in enumerate(replicas)})
        self.admission = Admission(self.fleet.board, clock=self.fleet.clock, **options)
        self.order: list[int] = []
        self.tasks: list[asyncio.Task[Reservation]] = []

    async def send(self, need: RequestNeed, **options: Any) -> asyncio.Task[Reservation]:
        number = len(self.tasks)

        async def wait() -> Reservation:
            reservation = await self.admission.admit(need, **options)
            self.order.append(number)
            return reservation

        self.tasks.append(asyncio.ensure_future(wait()))
        await settle()
        return self.tasks[-1]

    async def release(self, *tasks: asyncio.Task[Reservation]) -> None:
        for task in tasks:
            self.fleet.board.release(task.result())
        await settle()
        self.admission.check_integrity()

    async def close(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_what_fits_does_not_wait() -> None:
    door = Door(SMALL * 2)
    assert (await door.send(request(64))).done() and (await door.send(request(64))).done()
    third = await door.send(request(64))
    assert not third.done() and door.admission.queued_requests == 1 and door.admission.queued_tokens == 64
    await door.close()
    assert door.admission.queued_requests == 0 and door.admission.queued_tokens == 0


async def test_room_goes_to_those_who_wait_in_their_order() -> None:
    door = Door(SMALL)
    tasks = [await door.send(request(64)) for _ in range(5)]
    for task in tasks[:-1]:
        await door.release(task)
    assert door.order == [0, 1, 2, 3, 4]
    await door.close()


async def test_a_newcomer_does_not_pass_those_who_wait() -> None:
    door = Door(SMALL * 2)
    first, second = await door.send(request(64)), await door.send(request(64))
    waiting = await door.send(request(64))
    door.fleet.board.release(first.result())
    newcomer = await door.send(request(64))
    assert waiting.done() and not newcomer.done()
    await door.release(second)
    assert door.order == [0, 1, 2, 3]
    await door.close()


async def test_a_small_request_passes_a_large_one_a_bounded_number_of_times() -> None:
    blocks = facts(1).blocks(4000)
    door = Door(blocks, max_overtaken=3)
    occupant = await door.send(request(64))
    large = await door.send(request(4000))
    small = [await door.send(request(64)) for _ in range(6)]
    assert [task.done() for task in small] == [True] * 3 + [False] * 3, "three pass, then the replica is kept"
    assert not large.done()
    await door.release(occupant, *small[:3])
    assert large.done() and not any(task.done() for task in small[3:])
    await door.release(large)
    assert all(task.done() for task in small)
    await door.close()


async def test_a_request_that_no_room_is_kept_for_elsewhere_does_not_wait_for_it() -> None:
    """The large one can only go to r1; r0 is not kept for it."""
    door = Door(SMALL * 2, facts(1).blocks(4000), max_overtaken=0)
    long = await door.send(request(3000))
    larger = await door.send(request(4000))
    assert long.result().replica_id == "r1" and not larger.done()
    small = [await door.send(request(64)) for _ in range(3)]
    assert [task.done() for task in small] == [True, True, False]
    assert {task.result().replica_id for task in small[:2]} == {"r0"}
    await door.close()


async def test_a_full_queue_is_refused_with_a_time_to_come_back() -> None:
    door = Door(SMALL, max_queued=2, max_queue_s=20)
    first = await door.send(request(64))
    waiting = [await door.send(request(64)) for _ in range(2)]
    with pytest.raises(Overloaded, match="2 requests are waiting") as caught:
        await door.admission.admit(request(64))
    assert caught.value.retry_after_s == 20, "nothing was released yet: as long as a request may wait"
    door.fleet.clock.now += 10
    await door.release(first)
    await door.send(request(64))
    with pytest.raises(Overloaded) as caught:
        await door.admission.admit(request(64))
    assert caught.value.retry_after_s == 30, "64 tokens in 10 s, and 3 * 64 are wanted"
    assert waiting[0].done()
    await door.close()


async def test_no_room_in_time_is_refused_and_leaves_nothing_behind() -> None:
    door = Door(SMALL, max_queue_s=0.02)
    await door.send(request(64))
    with pytest.raises(Overloaded, match=r"0\.02 s"):
        await door.admission.admit(request(64))
    assert door.admission.queued_requests == 0 and door.fleet.board.reserved == 1
    door.admission.check_integrity()


async def test_without_any_replica_requests_wait_for_the_first() -> None:
    door = Door()
    tasks = [await door.send(request(64)), await door.send(NO_KV)]
    assert not any(task.done() for task in tasks)
    door.fleet.with_replicas(late=facts(100))
    await settle()
    assert [task.result().replica_id for task in tasks] == ["late", "late"]


async def test_a_request_that_no_replica_can_ever_hold_goes_through_without_kv() -> None:
    door = Door(SMALL)
    await door.send(request(64))
    await door.send(request(64))
    too_long = await door.send(request(9000))
    assert too_long.result().blocks == 0 and too_long.result().sequences == 0
    await door.close()


async def test_a_prompt_that_is_certainly_too_long_waits_behind_nobody_and_reserves_nothing() -> None:
    door = Door(200)
    await door.send(request(8000))
    await door.send(request(8000))
    too_long = await door.send(request(2 * 8192 + 1))
    assert (too_long.result().blocks, too_long.result().sequences) == (0, 0)
    await door.close()


async def test_a_prompt_that_only_seems_too_long_is_counted_as_the_longest_one() -> None:
    door = Door(200)
    for estimate in (8192, 9000, 2 * 8192):
        seems_too_long = await door.send(request(estimate))
        assert seems_too_long.result().blocks == facts(200).blocks(8192) and seems_too_long.result().sequences == 1
        waiting = await door.send(request(estimate))
        assert not waiting.done() and door.admission.queued_tokens == 8192
        await door.release(seems_too_long)
        await door.release(waiting)
    await door.close()


async def test_a_request_without_kv_goes_before_all_others_that_wait_for_a_full_fleet() -> None:
    door = Door(200)
    refused = await door.send(request(64))
    door.fleet.board.refused(refused.result())
    many = [await door.send(request(64)) for _ in range(70)]
    passing = await door.send(NO_KV)
    assert not any(task.done() for task in (*many, passing))
    door.fleet.report("r0")
    await settle()
    assert passing.done() and many[0].done() and not many[-1].done()
    await door.close()


async def test_a_request_whose_patience_is_spent_is_refused_at_once() -> None:
    door = Door(SMALL)
    with pytest.raises(Overloaded):
        await door.admission.admit(request(64), again=True, patience_s=0.0)
    await door.send(request(64))
    async with asyncio.timeout(5):
        with pytest.raises(Overloaded, match=r"0\.02 s"):
            await door.admission.admit(request(64), again=True, patience_s=0.02)
    door.admission.check_integrity()


async def test_a_request_without_kv_waits_behind_nobody() -> None:
    door = Door(SMALL)
    await door.send(request(64))
    await door.send(request(64))
    assert (await door.send(NO_KV)).done()
    await door.close()


async def test_a_retried_request_goes_first() -> None:
    door = Door(SMALL, max_queued=1)
    first = await door.send(request(64))
    waiting = await door.send(request(64))
    retried = await door.send(request(64), again=True)
    await door.release(first)
    assert retried.done() and not waiting.done()
    await door.close()


async def test_a_place_given_to_a_request_that_was_just_cancelled_is_given_back() -> None:
    door = Door(SMALL)
    first = await door.send(request(64))
    waiting = await door.send(request(64))
    third = await door.send(request(64))
    door.fleet.board.release(first.result())
    waiting.cancel()
    await settle()
    assert waiting.cancelled() and third.done() and door.fleet.board.reserved == 1
    door.admission.check_integrity()


async def test_a_suspect_that_may_be_tried_again_is_noticed_without_any_news() -> None:
    door = Door(SMALL)
    door.fleet.board.suspect("r0")
    waiting = await door.send(request(64))
    door.fleet.clock.now += 60
    await asyncio.wait_for(waiting, 3)


def test_the_rate_of_freeing_forgets_what_is_long_past() -> None:
    clock = Clock()
    rate = FreeingRate(clock)
    for _ in range(10):
        clock.now += 1
        rate.record(100)
    assert rate.tokens_per_s == 100 and rate.retry_after_s(1000, 5) == 10
    assert rate.retry_after_s(10**9, 5) == LONGEST_RETRY_S and rate.retry_after_s(0, 5) == 1
    clock.now += WINDOW_S + 1
    assert rate.tokens_per_s == 0 and rate.retry_after_s(1000, 5) == 5


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.sampled_from((0, 64, 500, 2000, 5000, 9000))),
        st.tuples(st.just("release"), st.integers(0, 100)),
        st.tuples(st.just("cancel"), st.integers(0, 100)),
        st.tuples(st.just("report"), st.integers(0, 100)),
        st.tuples(st.just("fail"), st.integers(0, 2)),
    ),
    max_size=80,
)


@settings(max_examples=120, deadline=None)
@given(STEPS, st.integers(0, 4))
def test_whatever_happens_nothing_is_lost_and_all_are_served_in_the_end(
    steps: list[tuple[str, int]], max_overtaken: int
) -> None:
    async def play() -> None:
        door = Door(100, 200, 400, max_queued=10_000, max_overtaken=max_overtaken)
        released: set[int] = set()
        for what, value in steps:
            running = [t for t in door.tasks if t.done() and not t.cancelled() and t.result().number not in released]
            waiting = [t for t in door.tasks if not t.done()]
            if what == "send":
                await door.send(request(value) if value else NO_KV)
            elif what == "release" and running:
                task = running[value % len(running)]
                released.add(task.result().number)
                await door.release(task)
            elif what == "cancel" and waiting:
                waiting[value % len(waiting)].cancel()
                await settle()
            elif what == "report":
                door.fleet.report(f"r{value % 3}", kv_usage=value / 200, reserved={})
            elif what == "fail":
                door.fleet.board.suspect(f"r{value}")
            await settle()
            door.admission.check_integrity()
            assert door.fleet.board.reserved == len([t for t in door.tasks if t.done() and not t.cancelled()]) - len(
                released
            )
        await _drain(door, released)

    asyncio.run(play())


async def _drain(door: Door, released: set[int]) -> None:
    door.fleet.clock.now += 100
    for name in door.fleet.known:
        door.fleet.report(name, kv_usage=0.0, reserved={}, running=0)
    for _ in range(1000):
        await settle()
        running = [t for t in door.tasks if t.done() and not t.cancelled() and t.result().number not in released]
        if not running:
            break
        released.add(running[0].result().number)
        await door.release(running[0])
    assert all(task.done() for task in door.tasks) and door.fleet.board.reserved == 0
    assert door.admission.queued_requests == 0 and door.admission.queued_tokens == 0


async def test_under_twice_the_load_everybody_is_served_or_told_to_come_back() -> None:
    door = Door(300, 600, max_queued=20, max_queue_s=0.3)
    chance = random.Random(3)
    told: list[str] = []

    async def client() -> None:
        await asyncio.sleep(chance.uniform(0, 0.5))
        try:
            reservation = await door.admission.admit(request(chance.choice((64, 500, 2000))))
        except Overloaded as error:
            assert 1 <= error.retry_after_s <= 60
            told.append("come back")
            return
        await asyncio.sleep(0.05)
        door.fleet.board.release(reservation)
        told.append("served")

    clients: list[Callable[[], Awaitable[None]]] = [client] * 600
    await asyncio.gather(*(each() for each in clients))
    door.admission.check_integrity()
    assert len(told) == 600 and told.count("served") > 200 and told.count("come back") > 0
    assert door.fleet.board.reserved == 0
