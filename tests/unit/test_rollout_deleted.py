"""An app that Ray Serve has deleted: its rollout ends, nothing begins, and its next life begins clean."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from hybrid_serve.rollout.ledger import MAX_APPS, Ledger, LedgerError, rolled_out_key, wish_key
from tests.rollout_fleet import APP, QUICK, PerilousStore, SimulatedApp, offer, pool_offer

OLD = offer("old", {"a": pool_offer("a1"), "b": pool_offer("b1")})
NEW = offer("new", {"a": pool_offer("a2", k=5), "b": pool_offer("b2", k=5)})
PLACED = offer("placed", {"a": pool_offer("a1", "p2"), "b": pool_offer("b1", "p2")})
POOLS = {"a": 2, "b": 2}
WHY = "Ray Serve has no app app any more"


@pytest.fixture
def app() -> SimulatedApp:
    return SimulatedApp(OLD, POOLS, PerilousStore())


def canary(app: SimulatedApp) -> None:
    app.begin(NEW)
    app.seconds(2)


def paused(app: SimulatedApp) -> None:
    app.begin(NEW, replace(QUICK, bake_s=60))
    app.until("baking")
    app.rollouts.pause(APP, True, "me")


def applying(app: SimulatedApp) -> None:
    app.begin(NEW)
    app.until("applying")


def replacing(app: SimulatedApp) -> None:
    app.begin(PLACED)
    app.until("replacing")


def reverting(app: SimulatedApp) -> None:
    applying(app)
    app.rollouts.rollback(APP, None, "me", "")
    app.until("reverting")


@pytest.mark.parametrize("reach", [canary, paused, applying, replacing, reverting])
@pytest.mark.parametrize("restarted", [False, True])
def test_a_rollout_ends_when_its_app_is_deleted(
    app: SimulatedApp, reach: Callable[[SimulatedApp], None], restarted: bool
) -> None:
    reach(app)
    app.delete()
    if restarted:
        app.restart_planner()
    app.until("app deleted", 60)
    shown, last = app.shown(), app.rollouts.history(APP)[-1]
    assert shown["rollout"] is None and not shown["deployed"] and shown["current"] == shown["bound"] == 1
    assert WHY in app.failure and WHY in last["reason"]
    assert (last["event"], last["rollout"]) == ("app deleted", "rollout-1")
    events = len(app.events())
    app.seconds(120)
    assert len(app.events()) == events and app.serve.work is None, "nothing waits, nothing is tried again"


def test_an_app_that_is_deleted_without_a_rollout_is_told_so_once(app: SimulatedApp) -> None:
    app.delete()
    app.seconds(60)
    assert app.events().count("app deleted") == 1 and not app.shown()["deployed"]
    assert not Ledger(app.store).apps[APP].deployed, "that is written, too"


def test_nothing_is_begun_of_an_app_that_was_deleted(app: SimulatedApp) -> None:
    app.begin(NEW)
    app.until("done")
    app.delete()
    app.seconds(10)
    answers = [app.begin(OLD), app.begin(NEW), app.rollouts.rollback(APP, None, "me", "")]
    for answer in answers:
        assert "app app is not deployed" in answer["refused"] and "serve deploy FILE" in answer["refused"]
    assert app.shown()["rollout"] is None
    unknown = app.rollouts.begin(replace(NEW, app="other"), QUICK, "me", "")
    assert unknown["refused"].endswith("(known: none)")


@pytest.mark.parametrize("digest, number", [("old", 1), ("new", 2), ("third", 3)])
def test_an_app_that_is_deployed_again_begins_clean(app: SimulatedApp, digest: str, number: int) -> None:
    reverting(app)
    app.delete()
    app.until("app deleted", 60)
    found = {"old": OLD, "new": NEW}.get(digest) or offer("third", dict(NEW.pools))
    assert app.deploy_anew(found, POOLS) == number
    app.seconds(10)
    shown = app.shown()
    assert shown["deployed"] and shown["current"] == shown["bound"] == number and shown["last"] is None
    assert app.is_settled() and app.served() == {digest}
    assert app.begin(PLACED)["started"] == "rollout-2"
    app.until("done")
    assert app.served() == {"placed"}


def test_what_it_was_to_be_is_forgotten_with_it(app: SimulatedApp) -> None:
    for key in (wish_key(APP), rolled_out_key(APP), wish_key("other")):
        app.store.write(key, b"x")
    app.delete()
    app.store.down = True
    with pytest.raises(LedgerError):
        app.rollouts.deleted(APP)
    assert app.shown()["deployed"], "what can't be written does not hold"
    app.store.down = False
    app.seconds(10)
    kept = [app.store.read(key) for key in (wish_key(APP), rolled_out_key(APP), wish_key("other"))]
    assert kept == [None, None, b"x"] and not app.shown()["deployed"]


def test_what_deploys_an_app_ends_when_the_app_is_deleted_and_its_keys_may_come_again(app: SimulatedApp) -> None:
    applying(app)
    assert app.serve.work is not None
    app.serve.results["old key"] = ""
    app.serve.work.until += 600
    app.delete()
    app.until("app deleted", 60)
    assert app.serve.work is None and app.serve.results == {}


def test_an_app_without_replicas_that_ray_serve_has_goes_on(app: SimulatedApp) -> None:
    app.begin(NEW)
    app.until("baking")
    for name in list(app.replicas):
        app.stop(name)
    app.until("done")
    assert app.shown()["deployed"]


def test_an_app_that_lives_is_not_taken_for_deleted(app: SimulatedApp) -> None:
    app.rollouts.deleted(APP)
    assert app.shown()["deployed"] and app.rollouts.unheard() == []


def test_a_planner_that_was_restarted_looks_for_no_app_before_it_knows_the_fleet(app: SimulatedApp) -> None:
    app.restart_planner()
    assert app.rollouts.unheard() == []


def test_replicas_that_are_heard_of_again_bring_their_app_back(app: SimulatedApp) -> None:
    app.delete()
    app.seconds(10)
    app.serve.has_the_app = True
    app.add("a", "old")
    app.seconds(5)
    assert app.shown()["deployed"] and app.events()[-1] == "app is deployed"
    assert "unchanged" in app.begin(OLD)


def test_a_full_ledger_makes_room_by_an_app_that_was_deleted() -> None:
    app = SimulatedApp(OLD, POOLS)
    for number in range(MAX_APPS - 1):
        app.rollouts.deployed(replace(OLD, app=f"app{number}"))
    with pytest.raises(LedgerError, match="256 apps are known"):
        app.rollouts.deployed(replace(OLD, app="late"))
    app.delete()
    app.rollouts.deleted(APP)
    assert app.rollouts.deployed(replace(OLD, app="late")) == 1
    known: Any = Ledger(app.store).apps
    assert APP not in known and "late" in known and len(known) == MAX_APPS
    assert not [key for key in app.store._values if key in (f"rollout/{APP}", f"generation/{APP}/1")]
