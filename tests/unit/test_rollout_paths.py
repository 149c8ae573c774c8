"""The ways that a rollout goes, on a simulated app."""

from dataclasses import replace

import pytest

from hybrid_serve.rollout.wire import Figures, RolloutOptions
from tests.rollout_fleet import APP, QUICK, Replica, SimulatedApp, offer, pool_offer

OLD = offer("old", {"a": pool_offer("a1"), "b": pool_offer("b1"), "c": pool_offer("c1")})
NEW = offer("new", {"a": pool_offer("a2", k=5), "b": pool_offer("b2", k=5), "c": pool_offer("c2", k=5)})
LIVE = offer("live", dict(OLD.pools))
ONE_POOL = offer("one", OLD.pools | {"b": pool_offer("b2")})
PLACED = offer("placed", OLD.pools | {"a": pool_offer("a1", "p2"), "b": pool_offer("b1", "p2")})
THIRD = offer("third", {"a": pool_offer("a3"), "b": pool_offer("b3"), "c": pool_offer("c3")})

FAST = Figures(
    requests=100,
    ttft_count=100,
    ttft_sum_s=10.0,
    tpot_count=100,
    tpot_sum_s=1.0,
    drafts=1000,
    accepted_per_position=(800, 600, 400, 300, 200, 100, 50),
)


@pytest.fixture
def app() -> SimulatedApp:
    return SimulatedApp(OLD, {"a": 2, "b": 2, "c": 2})


def of(app: SimulatedApp, digest: str) -> list[Replica]:
    return [replica for replica in app.replicas.values() if replica.digest == digest]


def phases(app: SimulatedApp) -> list[str]:
    names = ["canary", "baking", "rolling", "replacing", "applying", "reverting", "done", "superseded"]
    return [event for event in app.events() if event in (*names, "rolling back", "rolled back")]


def test_a_rollout_goes_by_canaries_and_waves_to_every_replica_and_to_ray_serve(app: SimulatedApp) -> None:
    assert app.begin(NEW) == {"started": "rollout-1", "generation": 2}
    app.until("done")
    assert app.served() == {"new"} and app.serve.bound == NEW
    assert app.serve.deployments == [("new", {})]
    assert app.worst == 1
    shown = app.shown()
    assert (shown["current"], shown["bound"]) == (2, 2)
    assert [each["state"] for each in shown["generations"]] == ["good", "current"]
    assert phases(app) == ["canary", "baking", "rolling", "applying", "done"]
    assert shown["last"]["wave"] == 3, "three replicas were canaries"


def test_there_is_one_canary_of_each_pool_and_they_switch_one_after_the_other(app: SimulatedApp) -> None:
    app.begin(NEW, replace(QUICK, bake_s=60))
    app.until("baking")
    assert sorted(replica.pool for replica in of(app, "new")) == ["a", "b", "c"] and app.worst == 1
    steps = app.shown()["rollout"]["steps"]
    assert [step["canary"] for step in steps] == [True, False] * 3
    assert [step["generation"] for step in steps] == [2, 1] * 3


@pytest.mark.parametrize("canary, count", [("2", 2), ("40%", 2), ("1%", 1), ("100%", 5), ("9", 5)])
def test_canaries_are_a_number_or_a_share_that_is_rounded_up(canary: str, count: int) -> None:
    app = SimulatedApp(ONE_POOL, {"b": 5})
    app.begin(OLD, replace(QUICK, canary=canary, bake_s=60))
    app.until("baking")
    assert len(of(app, "old")) == count


def test_waves_are_as_large_as_may_be_unavailable() -> None:
    app = SimulatedApp(OLD, {"a": 4, "b": 4, "c": 4})
    app.begin(NEW, replace(QUICK, canary="0", max_unavailable="34%"))
    app.until("done")
    assert app.worst == 4 and app.shown()["last"]["wave"] == 3


def test_without_an_engine_to_restart_ray_serve_is_told_at_once_and_the_replicas_take_the_name(
    app: SimulatedApp,
) -> None:
    app.begin(LIVE)
    app.until("done")
    assert phases(app) == ["applying", "done"] and app.worst == 0
    assert app.served() == {"live"} and app.serve.bound == LIVE


def test_a_pool_with_an_equal_engine_has_no_canary_and_restarts_nothing(app: SimulatedApp) -> None:
    app.begin(ONE_POOL, replace(QUICK, bake_s=20))
    app.until("baking")
    assert [replica.pool for replica in of(app, "one")] == ["b"]
    app.until("done")
    assert app.served() == {"one"}
    assert {replica.pool for replica in app.replicas.values() if replica.before} == {"b"}


def test_new_resources_need_new_replicas_a_pool_at_a_time(app: SimulatedApp) -> None:
    before = set(app.replicas)
    app.begin(PLACED)
    app.until("replacing")
    app.until("done")
    assert phases(app) == ["replacing", "applying", "done"]
    assert app.serve.deployments == [
        ("placed", {"a": "rollout-1-to"}),
        ("placed", {"a": "rollout-1-to", "b": "rollout-1-to"}),
        ("placed", {"a": "rollout-1-to", "b": "rollout-1-to"}),
    ]
    assert app.served() == {"placed"}
    assert {name.split("#")[0] for name in before & set(app.replicas)} == {"c"}


def test_a_pool_is_replaced_only_once_the_one_before_serves(app: SimulatedApp) -> None:
    app.begin(PLACED)
    while len(app.serve.deployments) < 2:
        app.seconds(1)
        assert len(app.serve.deployments) < 2 or all(
            replica.digest == "placed" and replica.phase == "serving"
            for replica in app.replicas.values()
            if replica.pool == "a"
        )


def test_pools_come_and_go(app: SimulatedApp) -> None:
    other = offer("other", {"a": OLD.pools["a"], "b": OLD.pools["b"], "d": pool_offer("d1")})
    app.begin(other)
    app.until("done")
    assert {replica.pool for replica in app.replicas.values()} == {"a", "b", "d"} and app.served() == {"other"}


def test_new_replicas_that_do_not_start_are_replaced_by_old_ones(app: SimulatedApp) -> None:
    app.begin(PLACED)
    app.until("replacing")
    while not of(app, "placed"):
        app.seconds(1)
    for _ in range(200):
        for replica in of(app, "placed"):
            replica.until = app.clock.now + 100
        app.seconds(1)
        if app.phase != "replacing":
            break
    assert app.phase == "rolling back" and "0 of 2 replicas serve generation 2, and no more for 60 s" in app.failure
    app.until("rolled back")
    assert app.served() == {"old"} and app.serve.deployments[-1] == ("old", {"a": "rollout-1-back"})


def test_a_deployment_that_waits_for_replicas_too_long_is_given_up(app: SimulatedApp) -> None:
    app.begin(PLACED)
    app.seconds(1)
    assert app.serve.work is not None
    app.serve.work.until = app.clock.now + 120
    app.until("rolling back", 70)
    assert "0 of 2 replicas serve generation 2, and no more for 60 s" in app.failure
    app.until("rolled back")
    assert app.served() == {"old"} and app.serve.bound == OLD


def test_a_canary_that_can_not_start_is_back_and_the_rollout_rolls_back(app: SimulatedApp) -> None:
    app.cannot_start.add(("b", "new"))
    app.begin(NEW)
    app.until("rolled back")
    assert app.served() == {"old"} and app.serve.deployments == []
    assert app.failure == ("pool b: replica start: replica b#3 did not start generation 2: ValueError: no such drafter")
    assert [each["state"] for each in app.shown()["generations"]] == ["current", "rolled back"]
    assert len([event for event in app.orders if event[1] == "new" and event[0] == "b#3"]) == 1


def test_a_generation_that_failed_can_be_rolled_out_again_once_it_starts(app: SimulatedApp) -> None:
    app.cannot_start.add(("a", "new"))
    app.begin(NEW)
    app.until("rolled back")
    app.cannot_start.clear()
    assert app.begin(NEW) == {"started": "rollout-2", "generation": 2}
    app.until("done")
    assert app.served() == {"new"}


def test_a_generation_that_fails_twice_fails_twice(app: SimulatedApp) -> None:
    app.cannot_start.add(("a", "new"))
    for number in (1, 2):
        app.begin(NEW)
        app.until("canary", 2)
        app.until("rolled back")
        assert app.shown()["last"]["name"] == f"rollout-{number}" and "no such drafter" in app.failure


def test_a_replica_that_takes_too_long_has_failed(app: SimulatedApp) -> None:
    app.begin(NEW)
    app.seconds(4)
    (replica,) = (each for each in app.replicas.values() if each.phase == "switching")
    replica.until = app.clock.now + 90
    app.until("rolling back", 70)
    assert "did not serve within 60 s and is switching" in app.failure
    app.until("rolled back")
    assert app.served() == {"old"}


@pytest.mark.parametrize(
    "figures, words",
    [
        (replace(FAST, errors=10), "pool a: error rate: 9.09% (10 of 110) on the new generation, 0.00% on the old one"),
        (replace(FAST, ttft_sum_s=21.0), "pool a: TTFT: 0.2100 s on the new generation, 0.1000 s on the old one"),
        (replace(FAST, tpot_sum_s=1.6), "pool a: time per output token: 0.0160 s on the new generation, 0.0100 s"),
        (
            replace(FAST, accepted_per_position=(10, 1, 0, 0, 0)),
            "pool a: acceptance: 0.01 tokens per draft on the new generation, 2.30 on the old one, over the first 5",
        ),
    ],
)
def test_a_canary_that_does_worse_is_rolled_back_with_both_figures(
    app: SimulatedApp, figures: Figures, words: str
) -> None:
    app.begin(NEW, replace(QUICK, bake_s=30))
    app.until("baking")
    for replica in app.replicas.values():
        replica.figures = FAST
    (canary,) = (replica for replica in of(app, "new") if replica.pool == "a")
    canary.figures = figures
    app.until("rolling back")
    assert app.failure.startswith(words) and "the limit is" in app.failure
    assert app.shown()["rollout"]["gates"]
    app.until("rolled back")
    assert app.served() == {"old"}
    assert "gate failed" in app.events()


def test_a_replica_that_is_its_pools_only_one_is_compared_with_what_it_did_before() -> None:
    app = SimulatedApp(OLD, {"a": 1, "b": 1, "c": 1})
    for replica in app.replicas.values():
        replica.figures = FAST
    app.begin(NEW, replace(QUICK, bake_s=30))
    app.until("baking")
    for replica in app.replicas.values():
        replica.figures = replace(FAST, tpot_sum_s=2.0)
    app.until("rolling back")
    assert "0.0200 s on the new generation, 0.0100 s on the old one (2.00 times)" in app.failure


def test_a_first_slow_request_is_forgiven_until_half_of_the_bake(app: SimulatedApp) -> None:
    app.begin(NEW, replace(QUICK, bake_s=40))
    app.until("baking")
    for replica in app.replicas.values():
        replica.figures = FAST if replica.digest == "old" else replace(FAST, ttft_sum_s=50.0)
    app.seconds(15)
    assert app.phase == "baking"
    for replica in of(app, "new"):
        replica.figures = replace(
            FAST, requests=1000, ttft_count=1000, ttft_sum_s=140.0, tpot_count=1000, tpot_sum_s=10.0
        )
    app.until("done")


def test_an_idle_fleet_waits_for_requests_twice_as_long_and_then_goes_on(app: SimulatedApp) -> None:
    app.begin(NEW, replace(QUICK, bake_s=30))
    app.until("baking")
    app.seconds(58)
    assert app.phase == "baking"
    app.seconds(4)
    assert app.phase == "rolling" and "not judged" in app.events()
    app.until("done")


def test_a_canary_with_another_engine_than_planned_is_rolled_back(app: SimulatedApp) -> None:
    app.begin(NEW, replace(QUICK, bake_s=30))
    app.until("baking")
    of(app, "new")[0].differences = ("num_blocks: planned 100, got 99",)
    app.until("rolled back")
    assert app.failure == "pool a: predicted = actual: replica a#1: num_blocks: planned 100, got 99"


def test_an_engine_that_dies_while_it_bakes_is_rolled_back(app: SimulatedApp) -> None:
    app.begin(NEW, replace(QUICK, bake_s=30))
    app.until("baking")
    of(app, "new")[0].dead = "EngineDeadError: killed"
    app.until("rolled back")
    assert app.failure == "pool a: engine deaths: replica a#1 on generation 2: EngineDeadError: killed"
    assert app.served() == {"old"}


@pytest.mark.parametrize("phase", ["switching", "baking", "rolling"])
def test_a_canary_that_is_killed_rolls_the_rollout_back(app: SimulatedApp, phase: str) -> None:
    app.begin(NEW, replace(QUICK, bake_s=20))
    while phase not in (app.phase, *(replica.phase for replica in app.replicas.values())):
        app.seconds(1)
    victim = next(replica for replica in app.replicas.values() if replica.digest == "new")
    app.kill(victim.name)
    app.add("a", "old")
    app.until("rolled back")
    assert f"replica {victim.name}" in app.failure and "was not heard of for 30 s" in app.failure
    gate = "replica start" if phase == "switching" else "engine deaths"
    assert f"pool a: {gate}:" in app.failure
    assert app.served() == {"old"}


@pytest.mark.parametrize("phase", ["canary", "baking", "rolling"])
def test_a_replica_of_the_old_generation_that_is_killed_stops_nothing(app: SimulatedApp, phase: str) -> None:
    app.begin(NEW, replace(QUICK, bake_s=20))
    app.until(phase)
    victim = [replica for replica in of(app, "old") if replica.phase == "serving"][-1]
    app.kill(victim.name)
    app.add(victim.pool, "old")
    app.until("done")
    assert app.served() == {"new"}


def test_a_proven_canary_that_is_scaled_down_is_no_failure_and_another_takes_its_place() -> None:
    app = SimulatedApp(OLD, {"a": 3, "b": 2, "c": 2})
    app.begin(NEW, replace(QUICK, bake_s=20))
    app.until("baking")
    app.stop("a#1")
    app.seconds(1)
    assert app.phase == "canary"
    app.until("done")
    assert app.served() == {"new"}


def test_a_newcomer_during_a_rollout_is_rolled_like_the_others(app: SimulatedApp) -> None:
    app.begin(NEW, replace(QUICK, bake_s=10))
    app.until("rolling")
    app.add("c", "old")
    app.until("done")
    assert app.served() == {"new"} and len(app.replicas) == 7


def test_the_last_replica_of_a_model_waits_until_another_one_serves() -> None:
    app = SimulatedApp(OLD, {"a": 2})
    app.begin(NEW, replace(QUICK, canary="0", max_unavailable="2"))
    while app.phase != "done":
        app.seconds(1)
        assert any(replica.phase == "serving" for replica in app.replicas.values())


def test_a_rollout_that_would_leave_a_model_without_a_replica_is_refused_with_what_to_do() -> None:
    old = offer("old", {"a": pool_offer("a1", model="m"), "b": pool_offer("b1", model="n")})
    new = offer("new", {"a": pool_offer("a2", model="m"), "b": pool_offer("b2", model="n")})
    app = SimulatedApp(old, {"a": 2, "b": 1})
    refused = app.begin(new)["refused"]
    assert "model n has 1 replica in all, in pool b, and generation 2 restarts it" in refused
    assert "--allow-outage" in refused and app.shown()["rollout"] is None
    live = offer("live", dict(old.pools))
    assert "started" in app.begin(live), "nothing restarts for it"
    app.until("done")
    assert "started" in app.begin(new, replace(QUICK, allow_outage=True))
    app.until("done")
    assert app.served() == {"new"}


def test_two_rollouts_at_once_are_one(app: SimulatedApp) -> None:
    app.begin(NEW)
    app.until("baking")
    assert app.begin(THIRD) == {"refused": "rollout-1 of app to generation 2 is baking, begun by me"}
    assert app.begin(NEW) == {"attached": "rollout-1"}
    app.until("done")
    assert app.begin(NEW) == {"unchanged": 2}
    assert app.begin(THIRD)["generation"] == 3


def test_an_unknown_app_is_refused_with_what_is_known(app: SimulatedApp) -> None:
    other = offer("x", OLD.pools, app="other")
    refused = app.rollouts.begin(other, QUICK, "me", "")["refused"]
    assert "app other is not known" in refused and "known: app" in refused


def test_a_paused_rollout_takes_no_step_forward_and_a_failed_gate_still_rolls_it_back(app: SimulatedApp) -> None:
    app.begin(NEW)
    app.until("baking")
    assert app.rollouts.pause(APP, True, "me") == {"paused": "rollout-1"}
    assert app.rollouts.pause(APP, True, "me") == {"unchanged": 2}
    app.seconds(100)
    assert app.phase == "baking" and app.shown()["rollout"]["paused"]
    assert app.rollouts.pause(APP, False, "me") == {"resumed": "rollout-1"}
    app.until("rolling")
    app.rollouts.pause(APP, True, "me")
    app.seconds(20)
    assert len(of(app, "new")) == 4, "what was ordered is finished"
    of(app, "new")[0].dead = "killed"
    app.until("rolled back")
    assert app.rollouts.pause(APP, True, "me") == {"refused": "no rollout of app is active"}


def test_a_rollout_is_rolled_back_when_somebody_says_so(app: SimulatedApp) -> None:
    app.begin(NEW)
    app.until("rolling")
    assert app.rollouts.rollback(APP, None, "you", "too slow") == {"started": "rollout-1", "generation": 1}
    assert app.rollouts.rollback(APP, None, "you", "") == {"attached": "rollout-1"}
    assert "rolling back" in app.begin(NEW)["refused"]
    app.until("rolled back")
    assert app.served() == {"old"} and app.failure == "rolled back by you: too slow" and app.worst == 1


def test_a_rollback_from_the_last_phase_binds_ray_serve_back(app: SimulatedApp) -> None:
    app.begin(NEW)
    app.until("applying")
    app.rollouts.rollback(APP, None, "you", "")
    app.seconds(3)
    assert app.serve.bound == NEW, "what was begun comes through"
    app.until("rolled back")
    assert app.serve.bound == OLD and app.served() == {"old"}
    assert app.serve.deployments[-1] == ("old", {})


def test_a_finished_rollout_goes_back_to_the_last_good_generation_without_canaries(app: SimulatedApp) -> None:
    app.begin(NEW)
    app.until("done")
    assert app.rollouts.rollback(APP, None, "you", "") == {"started": "rollout-2", "generation": 1}
    app.until("rolling", 2)
    app.until("done")
    assert app.served() == {"old"} and app.serve.bound == OLD and app.worst == 1
    assert [each["state"] for each in app.shown()["generations"]] == ["current", "rolled back"]
    assert "there is no good generation before" in app.rollouts.rollback(APP, None, "you", "")["refused"]
    assert app.rollouts.rollback(APP, 1, "you", "") == {"unchanged": 1}
    assert "generation 7 is unknown" in app.rollouts.rollback(APP, 7, "you", "")["refused"]
    assert app.rollouts.rollback(APP, 2, "you", "")["generation"] == 2


def test_a_deployment_that_fails_is_tried_again(app: SimulatedApp) -> None:
    app.serve.failures = 3
    app.begin(NEW)
    app.until("done")
    assert app.events().count("could not be deployed") == 3


def test_a_deployment_that_keeps_failing_rolls_back(app: SimulatedApp) -> None:
    app.serve.failures = 6
    app.begin(NEW)
    app.until("rolled back")
    assert app.failure == "Ray Serve did not take generation 2 in 4 attempts: RuntimeError: no such deployment"
    assert app.served() == {"old"} and app.serve.bound == OLD and app.serve.failures == 0


def test_a_replica_that_can_not_start_the_old_generation_again_is_asked_again(app: SimulatedApp) -> None:
    app.begin(NEW)
    app.until("rolling")
    app.cannot_start.add(("a", "old"))
    app.rollouts.rollback(APP, None, "you", "")
    app.seconds(120)
    assert app.phase == "rolling back" and app.served() == {"new", "old"}
    app.cannot_start.clear()
    app.until("rolled back")
    assert app.served() == {"old"}


def test_a_newcomer_with_an_older_binding_is_brought_to_the_current_generation(app: SimulatedApp) -> None:
    app.begin(NEW)
    app.until("done")
    app.add("a", "old")
    app.add("b", "old")
    app.seconds(20)
    assert app.served() == {"new"} and app.worst == 1


def test_who_can_not_be_brought_to_the_current_generation_is_asked_once_a_minute(app: SimulatedApp) -> None:
    app.begin(NEW)
    app.until("done")
    app.cannot_start.add(("a", "new"))
    app.orders.clear()
    newcomer = app.add("a", "old")
    app.seconds(125)
    began = [name for name, _ in app.orders if name == newcomer.name]
    assert 2 <= len(began) <= 12 and newcomer.digest == "old"


def test_what_ray_serve_deploys_is_current_at_once_and_ends_a_rollout(app: SimulatedApp) -> None:
    app.begin(NEW)
    app.until("rolling")
    third = replace(THIRD, built_at=app.clock.now)
    app.offers["third"] = third
    assert app.rollouts.deployed(third) == 3
    assert app.phase == "superseded" and app.shown()["current"] == app.shown()["bound"] == 3
    assert app.rollouts.deployed(third) == 3
    assert app.events().count("deployed by Ray Serve, without gates") == 2
    app.seconds(10)
    app.orders.clear()
    app.seconds(200)
    assert not app.orders, "Ray Serve brings new replicas itself"
    app.seconds(200)
    assert app.served() == {"third"}


def test_an_ingress_that_tells_of_an_older_deployment_changes_nothing(app: SimulatedApp) -> None:
    app.begin(replace(NEW, built_at=100.0))
    app.until("done")
    assert app.rollouts.deployed(OLD) == 1
    assert app.rollouts.deployed(replace(THIRD, built_at=app.clock.now - 60)) == 2
    assert app.shown()["current"] == 2
    assert app.rollouts.deployed(replace(OLD, built_at=app.clock.now + 1)) == 1
    assert app.shown()["current"] == 1


def test_an_ingress_that_a_rollout_deployed_does_not_end_it(app: SimulatedApp) -> None:
    app.begin(NEW)
    app.until("applying")
    assert app.rollouts.deployed(replace(NEW, built_at=app.clock.now)) == 2
    assert app.phase == "applying"
    app.until("done")
    assert app.rollouts.deployed(replace(NEW, built_at=app.clock.now)) == 2
    assert app.phase == "done"


def test_options_travel_with_the_order(app: SimulatedApp) -> None:
    app.begin(NEW, RolloutOptions(drain_s=7.0))
    app.seconds(2)
    (replica,) = (each for each in app.replicas.values() if each.phase == "draining")
    order = app.rollouts.heartbeat(replica.name, True, replica.run())
    assert (order.run, order.drain_s, order.again_s) == ("new", 7.0, 1.0)
    app.until("rolling", 1000)
    app.rollouts.rollback(APP, None, "me", "")
    app.until("rolled back")
    calm = next(iter(app.replicas.values()))
    assert app.rollouts.heartbeat(calm.name, False, calm.run()).again_s == 5.0


def test_the_configuration_of_a_pool_is_told_by_digest(app: SimulatedApp) -> None:
    app.begin(NEW)
    assert app.rollouts.pool_config(APP, "new", "a") == {"engine": "a2", "placement": "p1"}
    with pytest.raises(ValueError, match=r"no generation gone; it has 1 \(old\), 2 \(new\)"):
        app.rollouts.pool_config(APP, "gone", "a")
    with pytest.raises(ValueError, match="has the pools a, b, c, not z"):
        app.rollouts.pool_config(APP, "new", "z")


def test_a_planner_that_was_restarted_does_not_take_who_it_has_not_heard_for_gone(app: SimulatedApp) -> None:
    app.begin(NEW, replace(QUICK, bake_s=10))
    app.until("rolling")
    for replica in app.replicas.values():
        replica.mute = True
    app.restart_planner()
    app.seconds(12)
    assert app.phase == "rolling", "it has listened for less than three heartbeats"
    for replica in app.replicas.values():
        replica.mute = False
    app.until("done")
    assert app.served() == {"new"}


def test_a_canary_that_is_heard_of_late_by_a_planner_that_was_restarted_is_not_lost(app: SimulatedApp) -> None:
    app.begin(NEW, replace(QUICK, bake_s=60))
    app.until("baking")
    canary = of(app, "new")[0]
    canary.mute = True
    app.restart_planner()
    app.seconds(25)
    assert app.phase == "baking"
    canary.mute = False
    app.until("done")


def test_a_canary_that_was_killed_together_with_the_planner_is_lost(app: SimulatedApp) -> None:
    app.begin(NEW, replace(QUICK, bake_s=60))
    app.until("baking")
    canary = of(app, "new")[0]
    app.kill(canary.name)
    app.add(canary.pool, "old")
    app.restart_planner()
    app.until("rolled back")
    assert f"engine deaths: replica {canary.name} on generation 2 was not heard of for 30 s" in app.failure


def test_who_is_on_the_way_when_a_gate_fails_is_ordered_back_at_once(app: SimulatedApp) -> None:
    app.begin(NEW)
    app.until("rolling")
    app.seconds(3)
    (switching,) = (replica for replica in app.replicas.values() if replica.phase == "switching")
    switching.until = app.clock.now + 30
    of(app, "new")[0].dead = "killed"
    app.orders.clear()
    app.seconds(3)
    assert (switching.name, "old") in app.orders
    app.until("rolled back")
    assert app.served() == {"old"}


def test_a_wave_begins_once_the_one_before_serves() -> None:
    app = SimulatedApp(OLD, {"a": 6})
    app.begin(NEW, replace(QUICK, canary="0", max_unavailable="2"))
    app.seconds(4)
    slow, quick = (replica for replica in app.replicas.values() if replica.phase != "serving")
    slow.until = app.clock.now + 30
    app.seconds(20)
    assert quick.digest == "new" and quick.phase == "serving"
    assert app.shown()["rollout"]["wave"] == 1 and len(of(app, "old")) == 4
    app.until("done")
    assert app.shown()["last"]["wave"] == 3


def test_what_a_rollout_may_have_deployed_over_is_deployed_again(app: SimulatedApp) -> None:
    app.begin(NEW)
    app.until("applying")
    third = replace(THIRD, built_at=app.clock.now)
    app.offers["third"] = third
    app.serve.deploy(third, {})
    app.rollouts.deployed(third)
    app.seconds(2)
    assert app.serve.bound == NEW, "the rollout's deployment came later"
    app.seconds(5)
    assert app.serve.bound == third and "deployed again through Ray Serve" in app.events()
    app.seconds(400)
    assert app.served() == {"third"}
