"""A configuration that a deployed file wants, rolled out by the planner: real Ray, fake engines."""

from pathlib import Path
from typing import Any

import pytest
import ray

from deployments.binding import bound_generation
from hybrid_serve.negotiation.planner import ACTOR_NAME, NAMESPACE
from tests.cluster.conftest import Cluster, until
from tests.cluster.test_applying import APP, declared, file_with_wish, replicas, status_of
from tests.demo_app import app_values

pytestmark = pytest.mark.cluster

QUICK = {"canary": "1", "bake_s": 1, "max_unavailable": "1", "min_requests": 1}


def state() -> dict[str, Any]:
    planner = ray.get_actor(ACTOR_NAME, NAMESPACE)
    found: dict[str, Any] = ray.get(planner.rollouts.remote(APP), timeout=20).get(APP) or {}
    return found


def two_replicas(folder: Path, **engine: Any) -> dict[str, Any]:
    values = app_values(folder, **engine)
    values["pool"].update(min_replicas=2, max_replicas=2)
    return {**values, "rollout": QUICK}


def test_a_wish_is_rolled_out_in_the_running_replicas_and_asked_for_once(
    pair_folder: Path, cluster: Cluster, tmp_path: Path
) -> None:
    with declared(tmp_path, two_replicas(pair_folder)) as deploy:
        first = until(lambda: state().get("current"))
        before = replicas()
        wanted = two_replicas(pair_folder, num_speculative_tokens=5)
        wanted["limits"] = {"max_body": 2000}
        wish = file_with_wish({"desired": {"config": wanted, "reason": "shorter drafts"}})
        deploy(**wish)
        second = until(lambda: (now := state())["current"] != first and now["rollout"] is None and now["current"], 120)
        assert replicas() == before, "every engine was changed in its replica"
        bound = bound_generation(APP)
        assert bound is not None and bound.by_rollout
        assert bound.offer.pools["cpu"].num_speculative_tokens == 5
        until(lambda: status_of(cluster.url, 3000) == 413, 10)
        for _ in range(2):
            deploy(**wish)
        assert state()["current"] == second and state()["rollout"] is None and replicas() == before
        history = ray.get(ray.get_actor(ACTOR_NAME, NAMESPACE).history.remote(APP), timeout=20)
        begun = [event for event in history if event["actor"] == "serve deploy"]
        assert begun and all(event["reason"] for event in begun[:1]), history
