"""A planner that a test tells what to order, in the place of the cluster's."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import ray
from ray.experimental.internal_kv import _internal_kv_del

from hybrid_serve.negotiation.planner import ACTOR_NAME, HEAD_NODE, NAMESPACE, Planner
from hybrid_serve.negotiation.store import NAMESPACE as STORE
from hybrid_serve.rollout.ledger import INDEX, rolled_out_key, wish_key
from hybrid_serve.rollout.wire import Order, ReplicaRun
from tests.cluster.conftest import until


class OrderingPlanner(Planner):
    """Orders what it was told to, by replica, and remembers what each replica told last."""

    def __init__(self) -> None:
        super().__init__()
        self._configs: dict[str, Any] = {}
        self._orders: dict[str, Order] = {}
        self._runs: dict[str, ReplicaRun] = {}

    async def heartbeat(self, replica_id: str, incarnation: str, run: ReplicaRun | None = None) -> Order:
        known = self._book.heartbeat(replica_id, incarnation)
        if run is not None:
            self._runs[replica_id] = run
        return replace(self._orders.get(replica_id, Order(known=True, again_s=0.3)), known=known)

    async def forget(self, replica_id: str) -> None:
        await super().forget(replica_id)
        self._runs.pop(replica_id, None)

    async def pool_config(self, app: str, digest: str, pool: str) -> Any:
        if digest not in self._configs:
            raise ValueError(f"app {app} has no generation {digest}")
        return self._configs[digest]

    async def knows(self, digest: str, config: Any) -> None:
        self._configs[digest] = config

    async def order(self, replica_id: str, digest: str, drain_s: float) -> None:
        self._orders[replica_id] = Order(known=True, run=digest, drain_s=drain_s, again_s=0.3)

    async def runs(self) -> dict[str, ReplicaRun]:
        return self._runs


@contextmanager
def ordering_planner() -> Iterator[Any]:
    """Its handle. Replicas that start in the block find it; afterwards there is none, and whoever asks starts one.

    That one knows no app: those of tests before the block are none of its business, and to wait until it has heard from
    their replicas (`SETTLE_S`) would be in vain.
    """
    end_planner()
    planner = (
        ray.remote(OrderingPlanner)
        .options(name=ACTOR_NAME, namespace=NAMESPACE, lifetime="detached", num_cpus=0, resources=HEAD_NODE)
        .remote()
    )
    ray.get(planner.ping.remote(), timeout=30)
    try:
        yield planner
    finally:
        forget_generations()


def end_planner() -> None:
    """Ends the cluster's planner, if there is one."""

    def gone() -> bool:
        try:
            ray.kill(ray.get_actor(ACTOR_NAME, NAMESPACE))
        except ValueError:
            return True
        return False

    until(gone, seconds=20)


def forget_generations() -> None:
    """The next planner numbers from 1, as on a cluster on which nothing was deployed before.

    Call it while no app is deployed: its replicas would start a planner that reads what is being deleted.
    """
    end_planner()
    for prefix in (INDEX, "rollout/", "generation/", wish_key(""), rolled_out_key("")):
        _internal_kv_del(prefix, del_by_prefix=True, namespace=STORE)
