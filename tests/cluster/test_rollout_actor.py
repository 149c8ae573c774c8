"""A rollout in a real planner actor that is killed on the way: it goes on from Ray's store."""

import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest
import ray

from hybrid_serve.negotiation.planner import Planner
from hybrid_serve.negotiation.store import RayStore
from hybrid_serve.rollout.wire import GenerationOffer, ReplicaRun, RolloutOptions
from tests.cluster.conftest import Cluster
from tests.rollout_fleet import APP, offer, pool_offer

pytestmark = pytest.mark.cluster

OLD = offer("old", {"a": pool_offer("a1")})
NEW = offer("new", {"a": pool_offer("a2", k=5)})


class OwnStore(RayStore):
    """Ray's, beside what the cluster's own planner keeps there."""

    def read(self, key: str) -> bytes | None:
        return super().read(f"rollout-test/{key}")

    def write(self, key: str, value: bytes) -> None:
        super().write(f"rollout-test/{key}", value)

    def delete(self, key: str) -> None:
        super().delete(f"rollout-test/{key}")


async def applied(offer: GenerationOffer, restart: dict[str, str]) -> None:
    """Stands for the deployment through Ray Serve."""


async def is_deployed(app: str) -> bool:
    """Stands for Ray Serve, which has no such app."""
    return True


@pytest.fixture
def planner(cluster: Cluster) -> Iterator[Any]:
    actors = ray.remote(Planner).options(num_cpus=0, max_restarts=-1, max_task_retries=-1)
    actor = actors.remote(OwnStore(), applied, is_deployed)
    yield actor
    ray.kill(actor)


def test_a_planner_that_is_killed_in_a_rollout_finishes_it(planner: Any) -> None:
    def ask(method: str, *args: Any) -> Any:
        return ray.get(getattr(planner, method).remote(*args), timeout=60)

    def beat(replicas: dict[str, str]) -> None:
        for name, digest in replicas.items():
            run = ReplicaRun(app=APP, model="m", pool="a", digest=digest, phase="serving")
            replicas[name] = ask("heartbeat", name, "i", run).run or digest

    replicas = {"r1": "old", "r2": "old", "r3": "old"}
    assert ask("deployed", OLD) == 1
    beat(replicas)
    assert ask("begin", NEW, RolloutOptions(bake_s=3.0), "me") == {"started": "rollout-1", "generation": 2}
    killed = False
    until = time.monotonic() + 90
    while (shown := ask("rollouts", APP)[APP])["rollout"] is not None and time.monotonic() < until:
        beat(replicas)
        if not killed and shown["rollout"]["phase"] == "baking":
            os.kill(ask("status")["pid"], signal.SIGKILL)
            killed = True
        time.sleep(0.3)
    assert killed and shown["last"]["phase"] == "done" and shown["current"] == shown["bound"] == 2, shown
    assert set(replicas.values()) == {"new"}
    assert ask("pool_config", APP, "new", "a") == NEW.pools["a"].config
    assert ask("status")["integrity"] == ""
