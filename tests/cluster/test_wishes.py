"""A configuration that a deployed file wants, rolled out by the planner: real Ray, fake engines."""

from pathlib import Path
from typing import Any

import pytest
import ray
from ray import serve

from deployments.binding import bound_generation
from hybrid_serve.negotiation.planner import ACTOR_NAME, NAMESPACE
from hybrid_serve.rollout.wire import RolloutOptions
from tests.cluster.conftest import Cluster, until
from tests.cluster.test_applying import APP, declared, file_with_wish, offered, replicas, status_of
from tests.demo_app import app_values

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

QUICK = {"canary": "1", "bake_s": 1, "max_unavailable": "1", "min_requests": 1}
DONE_S = 300
"""A rollout with its two engine changes, on a slow machine."""


def state() -> dict[str, Any]:
    planner = ray.get_actor(ACTOR_NAME, NAMESPACE)
    found: dict[str, Any] = ray.get(planner.rollouts.remote(APP), timeout=20).get(APP) or {}
    return found


def served() -> int | None:
    """The current generation once both replicas serve it; what the planner kept of earlier apps is none."""
    now = state()
    runs = [(one["state"], one["generation"]) for one in now.get("replicas", ())]
    return int(now["current"]) if now and runs == [("serving", now["current"])] * 2 else None


def two_replicas(folder: Path, **engine: Any) -> dict[str, Any]:
    values = app_values(folder, **engine)
    values["pool"].update(min_replicas=2, max_replicas=2)
    return {**values, "rollout": QUICK}


def test_a_wish_is_rolled_out_in_the_running_replicas_and_asked_for_once(
    pair_folder: Path, cluster: Cluster, tmp_path: Path
) -> None:
    with declared(tmp_path, two_replicas(pair_folder)) as deploy:
        first = until(served, DONE_S)
        before = replicas()
        wanted = two_replicas(pair_folder, num_speculative_tokens=5)
        wanted["limits"] = {"max_body": 2000}
        wish = file_with_wish({"desired": {"config": wanted, "reason": "shorter drafts"}})
        deploy(**wish)
        second = until(
            lambda: (now := state())["current"] != first and now["rollout"] is None and now["current"], DONE_S
        )
        assert replicas() == before, "every engine was changed in its replica"
        bound = bound_generation(APP)
        assert bound is not None and bound.by_rollout
        assert bound.offer.pools["cpu"].num_speculative_tokens == 5
        until(lambda: status_of(cluster.url, 3000) == 413, 30)
        for _ in range(2):
            deploy(**wish)
        assert state()["current"] == second and state()["rollout"] is None and replicas() == before
        history = ray.get(ray.get_actor(ACTOR_NAME, NAMESPACE).history.remote(APP), timeout=20)
        begun = [event for event in history if event["generation"] == second and event["event"] == "rollout begins"]
        assert [(event["actor"], event["reason"]) for event in begun] == [("serve deploy", "shorter drafts")], history


def test_an_app_that_is_deleted_in_a_rollout_ends_it_and_comes_back_as_its_file_says(
    pair_folder: Path, cluster: Cluster, tmp_path: Path
) -> None:
    def ask(method: str, *arguments: Any) -> Any:
        return ray.get(getattr(ray.get_actor(ACTOR_NAME, NAMESPACE), method).remote(*arguments), timeout=90)

    values = two_replicas(pair_folder)
    wish = file_with_wish({"desired": {"config": two_replicas(pair_folder, num_speculative_tokens=4)}})
    with declared(tmp_path, values) as deploy:
        until(served, DONE_S)
        earlier = (state().get("last") or {}).get("name")
        deploy(**wish)
        until(lambda: (state()["last"] or {}).get("name", earlier) != earlier and not state()["rollout"], DONE_S)
        assert state()["last"]["phase"] == "done"
        offer = offered(two_replicas(pair_folder, num_speculative_tokens=6))
        name = ask("begin", offer, RolloutOptions(bake_s=120.0), "test")["started"]
        until(lambda: state()["rollout"]["phase"] == "baking", 100)
        serve.delete(APP)
        until(lambda: state()["rollout"] is None)
        assert (state()["last"]["name"], state()["last"]["phase"]) == (name, "app deleted")
        assert ask("history", APP)[-1]["reason"] == f"Ray Serve has no app {APP} any more"
        assert "is not deployed" in ask("begin", offer, RolloutOptions(), "test")["refused"]
        assert ask("status")["integrity"] == "" and not state()["deployed"]
        rolled_out = state()["current"]
        deploy(**wish)
        until(lambda: state()["deployed"])
        until(lambda: (state()["last"] or {}).get("phase") == "done", DONE_S)
        assert state()["current"] == rolled_out, "the wish of the file is asked for again"
        assert ask("history", APP)[-1]["event"] == "done"
