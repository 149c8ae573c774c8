"""What outlives the planner, over a store in memory; tests/cluster has the same over Ray's."""

import json
import logging
from dataclasses import replace

import pytest

from hybrid_serve.negotiation.agreement import Agreement, agree
from hybrid_serve.negotiation.kept import KEY, MAX_MODELS, MAX_OVERRIDES, RETRY_PERIOD_S, Kept
from hybrid_serve.negotiation.planner import Planner
from hybrid_serve.negotiation.store import MemoryStore
from tests.fleets import Clock, fleet_of, offer_of, problem

LIMIT = 262144
FLEET = fleet_of(
    {"big": problem(80, max_model_len=LIMIT), "small": problem(2, max_model_len=LIMIT)}, max_model_len=None
)


class Flaky(MemoryStore):
    """A store that can't be reached while `down`."""

    def __init__(self) -> None:
        super().__init__()
        self.down = False
        self.writes = 0

    def read(self, key: str) -> bytes | None:
        if self.down:
            raise ConnectionError("no control store")
        return super().read(key)

    def write(self, key: str, value: bytes) -> None:
        if self.down:
            raise ConnectionError("no control store")
        self.writes += 1
        super().write(key, value)


def an_agreement() -> Agreement:
    agreement = agree(FLEET)
    assert isinstance(agreement, Agreement)
    return agreement


def test_everything_comes_back() -> None:
    store = MemoryStore()
    kept = Kept(store)
    kept.count_start()
    kept.keep((an_agreement(), replace(an_agreement(), generation="other", drafter_fingerprint=None)))
    kept.set_override("seed", "generation", {"target": 3})
    again = Kept(store)
    assert (again.starts, again.agreements) == (1, kept.agreements)
    assert again.overrides("seed") == {"generation": {"target": 3}} and again.overrides("other") == {}
    assert again.all_overrides() == {"seed": {"generation": {"target": 3}}}


def test_only_changes_are_written() -> None:
    store = Flaky()
    kept = Kept(store)
    for _ in range(100):
        kept.keep((an_agreement(),))
    assert store.writes == 1


def test_a_store_that_is_down_stops_nothing_and_is_written_later(caplog: pytest.LogCaptureFixture) -> None:
    store, clock = Flaky(), Clock()
    store.down = True
    with caplog.at_level(logging.ERROR):
        kept = Kept(store, clock)
        kept.count_start()
        kept.keep((an_agreement(),))
    assert "starts without what it kept: no control store" in caplog.text
    assert "could not keep its agreements" in caplog.text
    store.down = False
    kept.keep((an_agreement(),))
    assert store.read(KEY) is None, "not asked again at once"
    clock.now += RETRY_PERIOD_S
    kept.keep((an_agreement(),))
    assert Kept(store).agreements == (an_agreement(),)


@pytest.mark.parametrize("value", [b"no json", b'{"format": 99}', b'{"format": 1}'])
def test_what_cannot_be_read_is_said_and_replaced(value: bytes, caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStore()
    store.write(KEY, value)
    with caplog.at_level(logging.ERROR):
        kept = Kept(store)
    assert "starts without what it kept" in caplog.text
    assert (kept.starts, kept.agreements) == (0, ())
    kept.count_start()
    assert Kept(store).starts == 1


def test_overrides_are_removed_by_none() -> None:
    store = MemoryStore()
    kept = Kept(store)
    kept.set_override("seed", "a", 1)
    kept.set_override("seed", "a", None)
    kept.set_override("seed", "never", None)
    assert Kept(store).all_overrides() == {}


def test_overrides_are_bounded() -> None:
    kept = Kept(MemoryStore())
    with pytest.raises(ValueError, match="at most 4,096 are kept"):
        kept.set_override("seed", "a", "x" * 5000)
    with pytest.raises(ValueError, match="is not JSON"):
        kept.set_override("seed", "a", object())
    for index in range(MAX_OVERRIDES):
        kept.set_override("seed", f"k{index}", index)
    with pytest.raises(ValueError, match="seed has 64 overrides already"):
        kept.set_override("seed", "more", 1)
    kept.set_override("seed", "k0", "replaced")
    for index in range(MAX_MODELS - 1):
        kept.set_override(f"m{index}", "k", index)
    with pytest.raises(ValueError, match="256 models have overrides already"):
        kept.set_override("one more", "k", 1)
    assert len(kept.all_overrides()) == MAX_MODELS


async def test_a_planner_over_the_same_store_answers_as_the_one_before(caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStore()
    first = await Planner(store).negotiate(offer_of(FLEET, "small", "r1", gib=1.5))
    again = Planner(store)
    second = await again.negotiate(offer_of(FLEET, "big", "r2"))
    assert second.agreement == first.agreement != agree(FLEET)
    status = await again.status()
    assert (status["starts"], status["integrity"]) == (2, "")
    assert [Agreement.from_json(value) for value in status["agreements"]] == [first.agreement]
    assert json.dumps(status)


def test_what_could_not_be_read_is_not_written_over() -> None:
    store, clock = Flaky(), Clock()
    before = Kept(store, clock)
    before.count_start()
    before.keep((an_agreement(),))
    before.set_override("seed", "generation", 3)
    store.down = True
    kept = Kept(store, clock)
    kept.count_start()
    kept.set_override("seed", "note", "later")
    store.down = False
    kept.set_override("other", "note", "too")
    again = Kept(store)
    assert (again.starts, again.agreements) == (2, (an_agreement(),))
    assert again.all_overrides() == {"seed": {"generation": 3, "note": "later"}, "other": {"note": "too"}}


async def test_the_agreement_is_kept_before_the_answer_is_given() -> None:
    store = MemoryStore()
    answer = await Planner(store).negotiate(offer_of(FLEET, "small", "r1", gib=1.5))
    assert Kept(store).agreements == (answer.agreement,)


async def test_a_planner_whose_store_is_down_still_answers() -> None:
    store = Flaky()
    store.down = True
    answer = await Planner(store).negotiate(offer_of(FLEET, "big"))
    assert answer.refusal == "" and answer.decision.plan is not None


async def test_a_book_that_contradicts_itself_is_in_the_status() -> None:
    planner = Planner()
    await planner.negotiate(offer_of(FLEET, "big"))
    planner._book._entries["r2"] = planner._book._entries["r1"]
    assert (await planner.status())["integrity"] == "r1 filed under r2"
