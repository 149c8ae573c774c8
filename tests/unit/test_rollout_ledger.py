"""What outlives the planner of its rollouts: written before it holds, bounded, and never overwritten unread."""

import json
from dataclasses import replace
from typing import Any

import pytest

from hybrid_serve.negotiation.store import MemoryStore
from hybrid_serve.rollout.ledger import FORMAT, INDEX, MAX_EVENTS, MAX_GENERATIONS, Ledger, LedgerError
from hybrid_serve.rollout.records import app_from_json, app_to_json
from hybrid_serve.rollout.wire import GenerationOffer
from tests.rollout_fleet import APP, QUICK, PerilousStore, PlannerKilled, SimulatedApp, offer, pool_offer

OLD = offer("old", {"a": pool_offer("a1"), "b": pool_offer("b1")})
NEW = offer("new", {"a": pool_offer("a2"), "b": pool_offer("b2")})


def app_on(store: MemoryStore) -> SimulatedApp:
    return SimulatedApp(OLD, {"a": 2, "b": 2}, store)


def kept(app: SimulatedApp) -> Any:
    return Ledger(app.store).apps[APP]


@pytest.mark.parametrize("phase", ["canary", "baking", "rolling", "applying", "done", "rolling back", "rolled back"])
def test_an_app_comes_back_as_it_was_in_every_phase(phase: str) -> None:
    app = app_on(MemoryStore())
    app.begin(NEW)
    if phase.startswith("roll") and phase != "rolling":
        app.until("rolling")
        app.rollouts.rollback(APP, None, "me", "")
    app.until(phase)
    state = app.rollouts._ledger.apps[APP]
    assert app_from_json(json.loads(json.dumps(app_to_json(state)))) == state == kept(app)
    assert Ledger(app.store).events(APP) == app.rollouts.history(APP)


def test_every_write_that_fails_changes_nothing() -> None:
    """Whichever write of a rollout is the planner's last, the next planner finds one state and goes on."""
    for number in range(1, 60):
        for written in (True, False):
            store = PerilousStore()
            app = app_on(store)
            store.writes_left, store.written = number, written
            try:
                app.begin(NEW)
            except PlannerKilled:
                app.restart_planner()
                app.seconds(20)
                answer = app.begin(NEW)
                assert {"started", "attached"} & set(answer), answer
            app.until("done")
            assert app.served() == {"new"}
            if store.writes_left is not None:
                return
    raise AssertionError("no rollout needs so many writes")


def test_a_store_that_is_down_stops_the_rollout_where_it_is_and_orders_nothing_new() -> None:
    store = PerilousStore()
    app = app_on(store)
    store.down = True
    with pytest.raises(LedgerError, match="could not take"):
        app.begin(NEW)
    assert app.shown()["rollout"] is None
    store.down = False
    app.begin(NEW)
    app.until("baking")
    store.down = True
    app.orders.clear()
    app.seconds(100)
    assert app.phase == "baking" and not app.orders and len(app.rollouts.history(APP)) == len(written_events(app))
    store.down = False
    app.until("done")


def written_events(app: SimulatedApp) -> list[Any]:
    return json.loads(app.store._values[f"rollout/{APP}"])["events"]  # type: ignore[no-any-return]


def test_a_planner_that_starts_without_its_store_orders_nothing_and_overwrites_nothing() -> None:
    store = PerilousStore()
    app = app_on(store)
    app.begin(NEW)
    app.until("baking")
    before = dict(store._values)
    store.down = True
    app.restart_planner()
    app.seconds(30)
    with pytest.raises(LedgerError):
        app.rollouts.deployed(OLD)
    store.down = False
    assert store._values == before
    app.seconds(1)
    app.until("done")
    assert app.served() == {"new"}


@pytest.mark.parametrize(
    "value", [b"\xff", b"[]", b'{"format": 99}', json.dumps({"format": FORMAT, "app": {}, "events": []}).encode()]
)
def test_what_can_not_be_read_is_left_alone_and_said(value: bytes) -> None:
    store = MemoryStore()
    app = app_on(store)
    store.write(f"rollout/{APP}", value)
    app.restart_planner()
    with pytest.raises(LedgerError, match="can't be read, and is left as it is"):
        app.begin(NEW)
    with pytest.raises(LedgerError, match="can't be read"):
        app.rollouts.deployed(OLD)
    app.seconds(10)
    assert store.read(f"rollout/{APP}") == value and not app.orders


def test_a_list_of_apps_that_can_not_be_read_is_left_alone() -> None:
    store = MemoryStore()
    app = app_on(store)
    store.write(INDEX, b"?")
    app.restart_planner()
    with pytest.raises(LedgerError, match=f"what is kept at {INDEX} can't be read"):
        app.rollouts.deployed(OLD)
    assert store.read(INDEX) == b"?"


def test_a_generation_of_another_release_is_listed_and_can_not_be_rolled_out() -> None:
    store = MemoryStore()
    app = app_on(store)
    app.begin(NEW)
    app.until("done")
    key = f"generation/{APP}/1"
    document = json.loads(store.read(key) or b"")
    store.write(key, json.dumps(document | {"offer": "Y25vX3N1Y2gKQ2xhc3MKLg=="}).encode())
    app.restart_planner()
    app.seconds(20)
    told = app.rollouts.generation(APP, 1)
    assert told["config"] == {"name": "old"} and "kept by another release" in told["problem"]
    assert "kept by another release" in app.rollouts.rollback(APP, None, "me", "")["refused"]
    assert app.rollouts.generation(APP, None)["problem"] == ""


def generations(count: int) -> list[GenerationOffer]:
    return [offer(f"g{number}", dict(OLD.pools), built_at=10_000.0 + number) for number in range(count)]


def test_the_last_generations_are_kept_and_the_store_does_not_grow() -> None:
    app = app_on(MemoryStore())
    for each in generations(MAX_GENERATIONS + 8):
        app.rollouts.deployed(each)
    numbers = [each["number"] for each in app.shown()["generations"]]
    assert len(numbers) == MAX_GENERATIONS and numbers[-1] == app.shown()["current"] == MAX_GENERATIONS + 9
    assert numbers[0] == 1, "the last that was seen to serve is kept"
    assert len(app.store._values) == MAX_GENERATIONS + 2
    app.rollouts.check_integrity()


def test_what_a_rollout_needs_is_never_dropped() -> None:
    app = app_on(MemoryStore())
    app.begin(NEW)
    app.until("baking")
    app.rollouts.check_integrity()
    ledger = app.rollouts._ledger
    state = ledger.apps[APP]
    more = {
        number: replace(state.generations[1], number=number, digest=f"x{number}", state="replaced")
        for number in range(3, MAX_GENERATIONS + 20)
    }
    ledger.commit(replace(state, generations=state.generations | more))
    assert {1, 2} <= set(ledger.apps[APP].generations) and len(ledger.apps[APP].generations) == MAX_GENERATIONS
    app.until("done")


def test_the_last_events_are_kept() -> None:
    app = app_on(MemoryStore())
    app.begin(NEW)
    app.until("baking")
    for number in range(MAX_EVENTS):
        app.rollouts.pause(APP, number % 2 == 0, f"me {number}")
    events = app.rollouts.history(APP)
    assert len(events) == MAX_EVENTS and events[-1]["actor"] == f"me {MAX_EVENTS - 1}"
    assert events == Ledger(app.store).events(APP)


def test_an_event_says_when_where_who_what_and_why() -> None:
    app = app_on(MemoryStore())
    app.begin(NEW)
    event = next(each for each in app.rollouts.history(APP) if each["event"] == "rollout begins")
    assert event == {
        "at": "1970-01-01T00:16:42.000+00:00",
        "app": APP,
        "rollout": "rollout-1",
        "generation": 2,
        "actor": "me",
        "event": "rollout begins",
        "reason": "a test",
    }
    assert QUICK.bake_s == 5.0
