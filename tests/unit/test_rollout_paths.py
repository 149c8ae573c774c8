"""The ways that a rollout goes, on a simulated app."""

import pytest

from tests.rollout_fleet import SimulatedApp, offer, pool_offer

OLD = offer("old", {"a": pool_offer("a1"), "b": pool_offer("b1"), "c": pool_offer("c1")})
NEW = offer("new", {"a": pool_offer("a2", k=5), "b": pool_offer("b2", k=5), "c": pool_offer("c2", k=5)})


@pytest.fixture
def app() -> SimulatedApp:
    return SimulatedApp(OLD, {"a": 2, "b": 2, "c": 2})


def test_a_rollout_goes_by_canaries_and_waves_to_every_replica_and_to_ray_serve(app: SimulatedApp) -> None:
    assert app.begin(NEW) == {"started": "rollout-1", "generation": 2}
    app.until("done")
    assert app.served() == {"new"} and app.serve.bound == NEW
    assert app.serve.deployments == [("new", {})]
    assert app.worst == 1
    shown = app.shown()
    assert (shown["current"], shown["bound"]) == (2, 2)
    assert [each["state"] for each in shown["generations"]] == ["good", "current"]
    phases = [event for event in app.events() if event in ("canary", "baking", "rolling", "applying", "done")]
    assert phases == ["canary", "baking", "rolling", "applying", "done"]
