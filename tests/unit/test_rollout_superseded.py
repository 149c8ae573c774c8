"""What is deployed through Ray Serve while something else is being deployed, or comes back from it."""

from dataclasses import replace

from hybrid_serve.rollout.state import ApplyRun
from hybrid_serve.rollout.wire import GenerationOffer
from tests.rollout_fleet import APP, QUICK, SimulatedApp, offer, pool_offer

FIRST = offer("first", {"a": pool_offer("e1")})
SECOND = offer("second", {"a": pool_offer("e2")})
THIRD = offer("third", {"a": pool_offer("e1")})
FOURTH = offer("fourth", {"a": pool_offer("e3")})
ELSEWHERE = offer("elsewhere", {"a": pool_offer("e1", "p2")})
AT_ONCE = replace(QUICK, canary="0", bake_s=0.0)


def rebinding(app: SimulatedApp) -> ApplyRun | None:
    return app.rollouts._ledger.apps[APP].rebind


def deploy(app: SimulatedApp, offered: GenerationOffer) -> GenerationOffer:
    """Through Ray Serve, and its ingress tells at once."""
    told = replace(offered, built_at=app.clock.now + 0.001)
    app.offers[told.digest] = told
    app.serve.deploy(told, {})
    app.rollouts.deployed(told)
    return told


def test_what_is_deployed_over_a_rebinding_is_bound_once_more() -> None:
    app = SimulatedApp(FIRST, {"a": 3})
    app.begin(ELSEWHERE, AT_ONCE)
    app.until("replacing")
    app.seconds(1)
    deploy(app, THIRD)
    first = rebinding(app)
    assert first is not None and (first.key, first.restart) == ("rollout-1/over", {"a": "rollout-1-over"})
    while app.serve.work is None or app.serve.work.key != first.key:
        app.seconds(1)
    fourth = deploy(app, FOURTH)
    second = rebinding(app)
    assert second is not None and second.digest == "fourth"
    assert (second.key, second.restart) == ("rollout-1/over+", {"a": "rollout-1-over+"}), "no deployment had it before"
    app.seconds(2)
    assert app.serve.bound.digest == "third", "the rebinding came later"
    app.seconds(400)
    assert app.serve.bound == fourth and rebinding(app) is None and app.served() == {"fourth"}


def test_a_rebinding_that_was_tried_again_is_followed_under_a_name_of_its_own() -> None:
    app = SimulatedApp(FIRST, {"a": 3})
    app.begin(SECOND, AT_ONCE)
    app.until("applying")
    app.serve.refused = {"third"}
    deploy(app, THIRD)
    app.seconds(40)
    tried = rebinding(app)
    assert tried is not None and tried.failures and tried.key.startswith("rollout-1/over ")
    deploy(app, FOURTH)
    followed = rebinding(app)
    assert followed is not None and (followed.key, followed.failures) == ("rollout-1/over+", 0)


def test_a_rebinding_that_can_not_succeed_holds_up_no_rollout() -> None:
    app = SimulatedApp(FIRST, {"a": 3})
    app.begin(ELSEWHERE, AT_ONCE)
    app.until("replacing")
    app.seconds(1)
    app.serve.refused = {"third"}
    deploy(app, THIRD)
    app.seconds(40)
    assert rebinding(app) is not None
    app.begin(FOURTH, AT_ONCE)
    app.until("done")
    app.seconds(60)
    assert app.serve.bound.digest == "fourth" and app.served() == {"fourth"} and rebinding(app) is None
    assert app.serve.deployments[-1] == ("fourth", {"a": "rollout-2-after"}), "with the new replicas that were due"


def test_a_replica_on_its_way_to_an_equal_engine_counts_among_those_away() -> None:
    app = SimulatedApp(FIRST, {"a": 3})
    app.begin(SECOND, AT_ONCE)
    app.until("applying")
    deploy(app, THIRD)
    app.rollouts.rollback(APP, 1, "me", "")
    while not any(replica.phase == "switching" for replica in app.replicas.values()):
        app.seconds(1)
    app.rollouts.rollback(APP, None, "me", "")
    app.seconds(400)
    assert app.served() == {"third"} and app.worst == 1


def test_a_replica_that_starts_is_ordered_back_once_it_serves() -> None:
    app = SimulatedApp(FIRST, {"a": 3})
    app.begin(SECOND, AT_ONCE)
    app.until("applying")
    for _ in range(2):
        app.add("a", "second")
    app.rollouts.rollback(APP, None, "me", "")
    app.seconds(1)
    assert app.phase == "rolling back"
    starting = {name for name, replica in app.replicas.items() if replica.phase == "starting"}
    assert len(starting) == 2 and not starting & app.rollouts._ledger.apps[APP].orders.keys()
    app.seconds(400)
    assert app.served() == {"first"} and app.worst == 1
