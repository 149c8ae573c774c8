"""A replica's change to another generation, with fake engines: as ordered, and back by itself if that fails."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deployments.config import ReplicaConfig
from deployments.engine_slot import EngineSlot
from deployments.preparing import Prepared, prepare
from deployments.routing.ticket import ReplicaDraining, ReplicaUnavailable
from deployments.switching import Switching
from hybrid_serve.engine.base import EngineStartError, Message
from hybrid_serve.engine.fake import FakeEngine
from hybrid_serve.negotiation.client import PlannerUnreachable
from hybrid_serve.negotiation.offer import PlanAnswer, ReplicaOffer
from hybrid_serve.plan.kv_plan import EngineReport
from hybrid_serve.rollout.wire import Figures, Order
from tests.generations import planned_for, replica_config
from tests.unit.test_fake_engine import CHAT, request


class Informed:
    """Remembers what the planner is told, in order."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.beats = 0
        self.when_started: Callable[[], None] = lambda: None

    def offered(self, offer: ReplicaOffer, answer: PlanAnswer) -> None:
        self.told.append(f"offered K={offer.inputs.settings.num_speculative_tokens}")

    async def started(self, report: EngineReport) -> bool:
        self.told.append(f"started {report.num_blocks}")
        self.when_started()
        return True

    def beat_soon(self) -> None:
        self.beats += 1


class Replica:
    """One that runs generation g7 (K = 7), and a planner that knows `generations`."""

    def __init__(self, folder: Path, **fake: Any) -> None:
        self.folder = folder
        self.generations: dict[str, ReplicaConfig] = {}
        self.engines: list[FakeEngine] = []
        self.informed = Informed()
        self.hold: asyncio.Event | None = None
        self.unreachable = False
        self.fetched: list[str] = []
        self.slot = EngineSlot(self._make)
        self.knows("g7", 7, **fake)
        self.knows("g5", 5)
        self.switching = Switching(
            self.slot, "default", planned_for(self.generations["g7"]), fetch=self._fetch, prepare=self._prepare
        )
        self.switching.informed = self.informed

    def knows(self, digest: str, k: int, **fake: Any) -> None:
        self.generations[digest] = replica_config(self.folder, digest, num_speculative_tokens=k, fake=fake)

    def _make(self, implementation: str) -> FakeEngine:
        self.engines.append(FakeEngine())
        return self.engines[-1]

    async def _fetch(self, digest: str) -> ReplicaConfig:
        self.fetched.append(digest)
        if self.unreachable:
            raise PlannerUnreachable("no answer in 15 s")
        if digest not in self.generations:
            raise ValueError(f"no generation {digest}: there are {', '.join(self.generations)}")
        return self.generations[digest]

    async def _prepare(self, config: ReplicaConfig) -> Prepared:
        if self.hold is not None:
            await self.hold.wait()
        return await prepare(planned_for(config))

    async def start(self) -> "Replica":
        await self.switching.start(await prepare(planned_for(self.generations["g7"])))
        return self

    def order(self, run: str | None, drain_s: float = 5.0) -> None:
        self.switching.follow(Order(known=True, run=run, drain_s=drain_s))

    async def settled(self) -> None:
        await until(lambda: self.switching._task is None)

    async def ordered(self, run: str, **order: float) -> None:
        self.order(run, **order)
        await self.settled()

    @property
    def k(self) -> int:
        assert self.slot.running is not None
        return self.slot.running.prepared.engine.settings.num_speculative_tokens

    async def ask(self, told: list[Message] | None = None, **values: Any) -> list[Message]:
        told = [] if told is None else told
        async for message in self.slot.serve(CHAT, request(**values), None):
            told.append(message)
        return told

    async def serves(self, digest: str, k: int) -> None:
        run = await self.switching.run()
        assert (run.digest, run.phase, self.k, run.dead) == (digest, "serving", k, "")
        messages = await self.ask(max_tokens=2)
        assert messages[0]["status"] == 200 and b"token1" in messages[-1]["body"]
        await self.switching.check_health()
        alive = [engine for engine in self.engines if not engine._stopped]
        assert [self.slot.running.engine] == alive if self.slot.running else not alive


async def until(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.002)


def text_of(messages: list[Message]) -> bytes:
    return b"".join(message.get("body", b"") for message in messages)


async def test_an_order_is_followed_and_everything_is_told(pair_folder: Path) -> None:
    replica = await Replica(pair_folder).start()
    await replica.serves("g7", 7)
    blocks = replica.slot.running.report.num_blocks if replica.slot.running else 0
    await replica.ordered("g5")
    await replica.serves("g5", 5)
    assert replica.slot.running is not None and replica.slot.running.report.num_blocks > blocks
    told = [f"started {blocks}", "offered K=5", f"started {replica.slot.running.report.num_blocks}"]
    assert replica.informed.told == told
    run = await replica.switching.run()
    assert run.failed is None and run.differences == ()
    assert run.before is not None and (run.before[0], run.before[1].requests) == ("g7", 1)
    assert run.figures is not None and (run.figures.requests, run.figures.ttft_count) == (1, 1)


async def test_orders_that_come_while_the_first_engine_starts_are_not_followed_yet(pair_folder: Path) -> None:
    replica = Replica(pair_folder)
    assert (await replica.switching.run()).phase == "starting"
    replica.informed.when_started = lambda: replica.order("g5")
    await replica.start()
    assert replica.switching._task is None
    replica.informed.when_started = lambda: None
    await replica.serves("g7", 7)


async def test_there_and_back_again(pair_folder: Path) -> None:
    replica = await Replica(pair_folder).start()
    for digest, k in (("g5", 5), ("g7", 7), ("g5", 5)):
        await replica.ordered(digest)
        await replica.serves(digest, k)
    assert len(replica.engines) == 4


async def test_an_order_that_is_repeated_changes_nothing(pair_folder: Path) -> None:
    replica = await Replica(pair_folder).start()
    replica.order("g7")
    assert replica.switching._task is None
    replica.generations["g5"] = replica_config(pair_folder, "g5", num_speculative_tokens=5, fake={"start_s": 0.1})
    for _ in range(20):
        replica.order("g5")
        await asyncio.sleep(0.01)
    await replica.settled()
    replica.order("g5")
    replica.order(None)
    await replica.serves("g5", 5)
    assert replica.fetched == ["g5"] and len(replica.engines) == 2


async def test_running_requests_finish_and_no_new_one_is_let_in(pair_folder: Path) -> None:
    replica = await Replica(pair_folder).start()
    running = asyncio.ensure_future(replica.ask(max_tokens=60, stream=True))
    await until(lambda: replica.slot._requests.running == 1)
    replica.order("g5")
    await until(lambda: replica.switching.phase == "draining")
    assert (await replica.switching.run()).digest == "g7" and not replica.slot.is_open
    with pytest.raises(ReplicaDraining):
        await replica.ask()
    await replica.switching.check_health()
    assert text_of(await running).endswith(b"data: [DONE]\n\n")
    await replica.settled()
    await replica.serves("g5", 5)
    run = await replica.switching.run()
    assert run.before is not None and (run.before[1].requests, run.before[1].errors) == (1, 0)


async def test_what_still_runs_after_the_time_to_drain_is_ended(pair_folder: Path) -> None:
    replica = await Replica(pair_folder).start()
    told: list[Message] = []
    stream = asyncio.ensure_future(replica.ask(told, max_tokens=1500, stream=True))
    whole = asyncio.ensure_future(replica.ask(max_tokens=1500))
    await until(lambda: len(told) > 3)
    await replica.ordered("g5", drain_s=0.05)
    with pytest.raises(ReplicaUnavailable) as begun:
        await stream
    assert not isinstance(begun.value, ReplicaDraining)
    with pytest.raises(ReplicaDraining):
        await whole
    await replica.serves("g5", 5)
    run = await replica.switching.run()
    assert run.before is not None and (run.before[1].requests, run.before[1].errors) == (0, 0)


async def test_a_client_that_reads_nothing_holds_up_no_switch(pair_folder: Path) -> None:
    """Its answer waits in the replica, and is ended when it goes on to read."""
    replica = await Replica(pair_folder).start()
    slow = replica.slot.serve(CHAT, request(max_tokens=1500, stream=True), None)
    assert (await anext(slow))["status"] == 200
    for digest, k in (("g5", 5), ("g7", 7)):
        await replica.ordered(digest, drain_s=0.01)
        await replica.serves(digest, k)
    with pytest.raises(ReplicaUnavailable, match="time to drain was over"):
        async for _ in slow:
            pass
    assert replica.slot._requests.running == 0


@pytest.mark.parametrize(
    ("digest", "reason"),
    [("g1", "no generation g1: there are g7, g5"), ("refused", "no KV plan for demo: "), ("g0", "broken facts")],
)
async def test_what_fails_before_the_drain_leaves_the_old_engine_untouched(
    pair_folder: Path, digest: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica = await Replica(pair_folder).start()
    replica.generations["refused"] = replica_config(pair_folder, "refused", num_speculative_tokens=5)
    replica.generations["g0"] = replica.generations["g5"]
    before = replica._prepare

    async def fails(config: ReplicaConfig) -> Prepared:
        if config.generation == "g0":
            raise LookupError("broken facts")
        if config.generation == "refused":
            raise EngineStartError("no KV plan for demo: its target has another fingerprint")
        return await before(config)

    monkeypatch.setattr(replica.switching, "_prepare", fails)
    await replica.ordered(digest)
    await replica.serves("g7", 7)
    run = await replica.switching.run()
    assert run.failed is not None and run.failed.digest == digest and reason in run.failed.reason
    assert len(replica.engines) == 1 and run.before is None
    await replica.ordered("g5")
    await replica.serves("g5", 5)
    assert (await replica.switching.run()).failed is None


@pytest.mark.parametrize(
    ("fake", "reason"),
    [({"fail": "no luck"}, "no luck"), ({"num_blocks": 5}, "predicted != actual: num_blocks: planned")],
)
async def test_an_engine_that_does_not_start_on_its_plan_is_replaced_by_the_old_one(
    pair_folder: Path, fake: dict[str, Any], reason: str
) -> None:
    replica = await Replica(pair_folder).start()
    replica.knows("g5", 5, **fake)
    fetched_before = len(replica.fetched)
    await replica.ordered("g5")
    await replica.serves("g7", 7)
    run = await replica.switching.run()
    assert run.failed is not None and run.failed.digest == "g5" and run.failed.reason.startswith(reason)
    assert len(replica.engines) == 3 and len(replica.fetched) == fetched_before + 1
    assert [each.split()[0] for each in replica.informed.told] == ["started", "offered", "offered", "started"]


async def test_a_generation_that_failed_is_tried_again_only_once_the_order_was_withdrawn(pair_folder: Path) -> None:
    replica = await Replica(pair_folder).start()
    replica.knows("g5", 5, fail="no luck")
    await replica.ordered("g5")
    for _ in range(3):
        await replica.ordered("g5")
    assert len(replica.engines) == 3
    assert (await replica.switching.run()).failed is not None
    replica.knows("g5", 5)
    replica.order(None)
    assert (await replica.switching.run()).failed is not None, "kept until the next order"
    await replica.ordered("g5")
    await replica.serves("g5", 5)
    assert (await replica.switching.run()).failed is None


async def test_if_neither_starts_the_replica_is_unhealthy(pair_folder: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    replica = await Replica(pair_folder, fail_while=str(broken)).start()
    broken.touch()
    replica.knows("g5", 5, fail="no luck")
    await replica.ordered("g5")
    with pytest.raises(EngineStartError, match="neither the new generation nor the old one starts"):
        await replica.switching.check_health()
    run = await replica.switching.run()
    assert "neither" in run.dead and run.failed is not None
    with pytest.raises(ReplicaDraining):
        await replica.ask()
    broken.unlink()
    await replica.ordered("g7")
    assert len(replica.engines) == 3, "Ray Serve replaces it"


async def test_while_the_engine_is_changed_the_replica_is_healthy(pair_folder: Path) -> None:
    replica = await Replica(pair_folder).start()
    replica.knows("g5", 5, start_s=0.1)
    replica.order("g5")
    phases = set()
    while replica.switching.digest == "g7" or replica.switching.phase == "switching":
        await replica.switching.check_health()
        run = await replica.switching.run()
        phases.add(run.phase)
        assert (run.figures is None) == (run.phase == "switching") and run.dead == ""
        assert run.digest == ("g5" if run.phase == "switching" else "g7")
        await asyncio.sleep(0.01)
    assert "switching" in phases


async def test_an_order_that_changes_while_the_old_engine_runs_takes_the_place_of_the_first(pair_folder: Path) -> None:
    replica = await Replica(pair_folder).start()
    replica.knows("g3", 3)
    replica.hold = asyncio.Event()
    replica.order("g5")
    await until(lambda: replica.fetched == ["g5"])
    replica.order("g3")
    await replica.settled()
    replica.hold.set()
    await replica.ordered("g3")
    await replica.serves("g3", 3)
    assert len(replica.engines) == 2 and replica.fetched == ["g5", "g3"]


async def test_an_order_that_is_withdrawn_before_its_task_ran_leaves_nothing(pair_folder: Path) -> None:
    replica = await Replica(pair_folder).start()
    replica.order("g5")
    replica.order("g7")
    await replica.settled()
    await replica.serves("g7", 7)
    await replica.ordered("g5")
    await replica.serves("g5", 5)


async def test_an_order_that_is_withdrawn_in_the_drain_opens_the_door_again(pair_folder: Path) -> None:
    replica = await Replica(pair_folder).start()
    running = asyncio.ensure_future(replica.ask(max_tokens=200, stream=True))
    await until(lambda: replica.slot._requests.running == 1)
    replica.order("g5")
    await until(lambda: replica.switching.phase == "draining")
    replica.order("g7")
    await replica.settled()
    await replica.serves("g7", 7)
    assert text_of(await running).endswith(b"data: [DONE]\n\n") and len(replica.engines) == 1


async def test_an_order_that_is_withdrawn_while_the_new_engine_starts_ends_that_start(pair_folder: Path) -> None:
    replica = await Replica(pair_folder).start()
    replica.knows("g5", 5, start_s=60)
    replica.order("g5")
    await until(lambda: replica.switching.phase == "switching" and len(replica.engines) == 2)
    replica.order("g3")
    await asyncio.sleep(0.01)
    assert replica.switching.phase == "switching", "a third generation has to wait"
    replica.order("g7")
    await replica.settled()
    await replica.serves("g7", 7)
    assert (await replica.switching.run()).failed is None


async def test_an_engine_that_never_starts_is_given_up(pair_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deployments.switching.START_LIMIT_S", 0.05)
    replica = await Replica(pair_folder).start()
    replica.knows("g5", 5, start_s=60)
    await replica.ordered("g5")
    await replica.serves("g7", 7)
    run = await replica.switching.run()
    assert run.failed is not None and run.failed.reason == "the engine did not start in 0.05 s"


async def test_a_planner_that_is_away_delays_the_switch_and_nothing_failed(pair_folder: Path) -> None:
    replica = await Replica(pair_folder).start()
    replica.unreachable = True
    await replica.ordered("g5")
    await replica.serves("g7", 7)
    assert (await replica.switching.run()).failed is None
    replica.unreachable = False
    await replica.ordered("g5")
    await replica.serves("g5", 5)


async def test_a_generation_with_the_same_engine_is_adopted_without_a_restart(pair_folder: Path) -> None:
    replica = await Replica(pair_folder).start()
    replica.generations["same"] = replica.generations["g7"]
    assert text_of(await replica.ask(max_tokens=2))
    running = asyncio.ensure_future(replica.ask(max_tokens=100, stream=True))
    await until(lambda: replica.slot._requests.running == 1)
    await replica.ordered("same")
    assert not running.done() and text_of(await running).endswith(b"data: [DONE]\n\n")
    run = await replica.switching.run()
    assert run.before is not None and (run.before[0], run.before[1].requests) == ("g7", 1)
    assert run.figures is not None and run.figures.requests == 1, "of the new generation"
    await replica.serves("same", 7)
    assert len(replica.engines) == 1 and replica.informed.told[-2:] == ["offered K=7", replica.informed.told[0]]
    await replica.ordered("g5")
    await replica.serves("g5", 5)
    run = await replica.switching.run()
    assert run.figures is not None and run.figures.requests == 1


async def test_other_engine_arguments_are_another_engine(pair_folder: Path) -> None:
    replica = await Replica(pair_folder).start()
    replica.knows("slower", 7, token_s=0.003)
    await replica.ordered("slower")
    await replica.serves("slower", 7)
    assert len(replica.engines) == 2


async def test_an_engine_that_died_is_told_and_can_still_be_changed(pair_folder: Path) -> None:
    replica = await Replica(pair_folder).start()
    replica.engines[0].die("its core was killed")
    assert (await replica.switching.run()).dead == "its core was killed"
    with pytest.raises(EngineStartError, match="core was killed"):
        await replica.switching.check_health()
    await replica.ordered("g5")
    await replica.serves("g5", 5)


@pytest.mark.parametrize("when", ["preparing", "draining", "switching"])
async def test_a_replica_that_stops_in_the_middle_leaves_no_engine(pair_folder: Path, when: str) -> None:
    replica = await Replica(pair_folder).start()
    replica.knows("g5", 5, start_s=60)
    running: asyncio.Future[Any] | None = None
    if when == "preparing":
        replica.hold = asyncio.Event()
    if when == "draining":
        running = asyncio.ensure_future(replica.ask(max_tokens=1500))
        await until(lambda: replica.slot._requests.running == 1)
    replica.order("g5")
    await until(lambda: bool(replica.fetched) and (when == "preparing" or replica.switching.phase == when))
    await asyncio.sleep(0.01)
    await replica.switching.close()
    await replica.slot.stop()
    assert all(engine._stopped for engine in replica.engines)
    replica.order("g5")
    assert replica.switching._task is None
    if running is not None:
        running.cancel()


async def test_what_requests_need_is_measured_over_a_switch(pair_folder: Path) -> None:
    replica = await Replica(pair_folder).start()
    await replica.ask(max_tokens=4)
    await replica.ordered("g5")
    await replica.ask(max_tokens=8)
    load = replica.slot.accounts.report(await replica.slot.stats(), healthy=True)
    assert (load.measured_requests, load.mean_output_tokens) == (2, 6)


async def test_errors_are_counted_and_clients_that_leave_are_not(pair_folder: Path) -> None:
    replica = await Replica(pair_folder, error_rate=0.5).start()
    told = [(await replica.ask(max_tokens=1))[0]["status"] for _ in range(6)]
    assert told == [200, 500] * 3
    leaving = asyncio.ensure_future(replica.ask(max_tokens=1500, stream=True))
    await until(lambda: replica.slot._requests.running == 1)
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    figures = await replica.slot.figures()
    assert figures is not None and (figures.requests, figures.errors) == (3, 3)


async def test_a_stream_that_breaks_off_is_an_error(pair_folder: Path) -> None:
    replica = await Replica(pair_folder).start()
    told: list[Message] = []
    stream = asyncio.ensure_future(replica.ask(told, max_tokens=1500, stream=True))
    await until(lambda: len(told) > 3)
    replica.engines[0].die("its core was killed")
    await stream
    figures = await replica.slot.figures()
    assert figures == Figures(requests=0, errors=1, ttft_count=1, ttft_sum_s=figures.ttft_sum_s if figures else 0)


async def test_a_bare_prepare_that_takes_long_does_not_stop_the_replica_from_serving(pair_folder: Path) -> None:
    replica = await Replica(pair_folder).start()
    replica.hold = asyncio.Event()
    replica.order("g5")
    await until(lambda: bool(replica.fetched))
    await replica.serves("g7", 7)
    replica.hold.set()
    await replica.settled()
    await replica.serves("g5", 5)
