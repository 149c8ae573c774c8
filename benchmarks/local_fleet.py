"""A fleet on this machine: one Ray node per pool, labelled as the pool asks, and the app on it; and ways to hurt it."""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import ray
from ray import serve
from ray.serve.config import HTTPOptions

from deployments.builder import build
from deployments.config import AppConfig
from deployments.local_haproxy import free_port
from deployments.local_nodes import local_nodes
from deployments.local_ray import LocalNode, private_ray, processes_of, start_node
from deployments.pool_config import INGRESS
from hybrid_serve.negotiation.planner import ACTOR_NAME, NAMESPACE

OBJECT_STORE_BYTES = 128 * 2**20


class LocalFleet:
    """The running app, what its planner knows, and its processes by what they are."""

    def __init__(self, config: AppConfig, url: str, nodes: dict[str, tuple[LocalNode, Any]]) -> None:
        self.config = config
        self.url = url
        self._nodes = nodes
        self._replaced: list[Any] = []

    @property
    def model(self) -> str:
        """The (first) model that clients ask for."""
        return self.config.served[0].name

    @property
    def pools(self) -> list[str]:
        return [pool.name for served in self.config.served for pool in served.pools]

    def status(self) -> dict[str, Any]:
        """The planner's."""
        status: dict[str, Any] = ray.get(ray.get_actor(ACTOR_NAME, NAMESPACE).status.remote(), timeout=10)
        return status

    def rollouts(self) -> dict[str, Any]:
        """What the planner knows of the app's generations and its rollout. Raises as Ray does while it is away."""
        apps = ray.get(ray.get_actor(ACTOR_NAME, NAMESPACE).rollouts.remote("default"), timeout=10)
        known: dict[str, Any] = apps.get("default", {})
        return known

    def history(self) -> list[dict[str, Any]]:
        """The events of the app's rollouts, oldest first."""
        events: list[dict[str, Any]] = ray.get(
            ray.get_actor(ACTOR_NAME, NAMESPACE).history.remote("default"), timeout=10
        )
        return events

    @property
    def address(self) -> str:
        """Of Ray's head, for commands."""
        return str(ray.get_runtime_context().gcs_address)

    def running(self) -> dict[str, list[dict[str, Any]]]:
        """The planner's entries of running replicas by pool, every pool named."""
        found: dict[str, list[dict[str, Any]]] = {pool: [] for pool in self.pools}
        for entry in self.status()["replicas"]:
            if entry["state"] == "running":
                found[entry["pool"]].append(entry)
        return found

    def stats(self, pool: str) -> dict[str, Any]:
        """Live figures of one replica of a pool."""
        stats: dict[str, Any] = serve.get_deployment_handle(pool, "default").stats.remote().result(timeout_s=20)
        return stats

    def whole(self) -> bool:
        """Ray Serve says that all is healthy, and the planner knows a running replica in every pool."""
        application = serve.status().applications.get("default")
        if application is None:
            return False
        if application.status == "DEPLOY_FAILED":
            raise TimeoutError(application.message)
        healthy = application.status == "RUNNING" and all(
            d.status == "HEALTHY" for d in application.deployments.values()
        )
        try:
            return healthy and all(self.running().values())
        except (ray.exceptions.RayError, ValueError):
            return False

    def messages(self) -> list[str]:
        """What Ray Serve says of each deployment."""
        application = serve.status().applications["default"]
        return [f"{name} {d.status}: {d.message}" for name, d in application.deployments.items()]

    def planner(self) -> psutil.Process:
        return self._one(lambda process: _title(process).startswith("ray::Planner"), "planner")

    def controller(self) -> psutil.Process:
        """Ray Serve's."""
        return self._one(lambda process: _title(process).startswith("ray::ServeController"), "controller")

    def replica_called(self, replica_id: str) -> psutil.Process:
        """One replica by its id."""
        for replica in _ray_serves_replicas():
            if replica["replica_id"] == replica_id:
                return psutil.Process(int(replica["pid"]))
        raise LookupError(f"Ray Serve has no replica {replica_id}")

    def replica_ids(self) -> set[str]:
        """Of the replicas that run, as Ray Serve has them: the planner forgets a dead one after a minute of silence."""
        return {each["replica_id"] for each in _ray_serves_replicas() if each["state"] == "RUNNING"}

    def replica(self, pool: str) -> psutil.Process:
        return self._one(lambda process: f"ServeReplica:default:{pool}" in _title(process), f"replica of {pool}")

    def engine_core(self, pool: str) -> psutil.Process:
        return engine_core_of(self.replica(pool))

    def processes_of_node(self, pool: str) -> list[psutil.Process]:
        """Of the pool's node: its raylet and agents, and its workers below them."""
        return processes_of(self._nodes[pool][1])

    def without_ingress(self) -> str:
        """The first pool on whose node there is no ingress: Ray Serve places it on any.

        Raises:
            LookupError: there is none.
        """
        ingress = self.replica(INGRESS).pid
        for pool in self.pools:
            if ingress not in {process.pid for process in self.processes_of_node(pool)}:
                return pool
        raise LookupError(f"the ingress is on the node of every pool: {', '.join(self.pools)}")

    def kill_node(self, pool: str) -> float:
        """SIGKILL for all of the node's processes, as when a machine goes. Answers when the last one was sent."""
        processes = self.processes_of_node(pool)
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        gone_at = time.monotonic()
        psutil.wait_procs(processes, timeout=10)
        return gone_at

    def replace_node(self, pool: str) -> None:
        """A new node with the labels of the one that went."""
        node = self._nodes[pool][0]
        self._nodes[pool] = (node, start_node(node))
        self._replaced.append(self._nodes[pool][1])

    def left_over(self, processes: list[psutil.Process]) -> list[str]:
        """Titles of those that still run."""
        return [_title(process) for process in processes if _runs(process)]

    def _one(self, wanted: Callable[[psutil.Process], bool], what: str) -> psutil.Process:
        for process in psutil.Process(os.getpid()).children(recursive=True):
            if wanted(process):
                return process
        raise LookupError(f"no process of the {what}")

    def close_replaced(self) -> None:
        """Ends the nodes that `replace_node` started."""
        for node in self._replaced:
            node.kill_all_processes(check_alive=False, allow_graceful=False, wait=True)


def engine_cores_of(replica: psutil.Process) -> list[psutil.Process]:
    """vLLM's engine cores below a replica: one, but while engines change."""
    return [child for child in replica.children(recursive=True) if "EngineCore" in _title(child)]


def engine_core_of(replica: psutil.Process) -> psutil.Process:
    """vLLM's engine core below a replica.

    Raises:
        LookupError: there is none.
    """
    for core in engine_cores_of(replica):
        return core
    raise LookupError(f"process {replica.pid} has no engine core below it")


def _ray_serves_replicas() -> list[dict[str, Any]]:
    details = serve.context._get_global_client().get_serve_details()["applications"]["default"]["deployments"]
    return [replica for deployment in details.values() for replica in deployment["replicas"]]


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _title(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline()) or process.name()
    except psutil.NoSuchProcess:
        return ""


@contextmanager
def local_fleet(config: AppConfig) -> Iterator[LocalFleet]:
    """Starts Ray, a node per pool and the app; ends when all pools have a running replica; stops all afterwards."""
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(Path.cwd()), os.environ.get("PYTHONPATH")]))
    port = free_port()
    wanted = local_nodes(config)
    with private_ray(
        list(wanted.values()), num_cpus=1, object_store_memory=OBJECT_STORE_BYTES, log_to_driver=False
    ) as up:
        # Ray has taken over SIGTERM by now, and would end this process without its nodes' folders.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit("asked to stop"))
        nodes = {pool: (node, running) for (pool, node), running in zip(wanted.items(), up, strict=True)}
        fleet = LocalFleet(config, f"http://127.0.0.1:{port}", nodes)
        try:
            serve.start(proxy_location="HeadOnly", http_options=HTTPOptions(host="127.0.0.1", port=port))
            serve._run(build(config), _blocking=False)
            try:
                until(fleet.whole, 600)
            except TimeoutError:
                raise TimeoutError("\n".join(fleet.messages())) from None
            yield fleet
            serve.shutdown()
        finally:
            fleet.close_replaced()


def until(condition: Callable[[], bool], seconds: float) -> float:
    """Seconds until the condition held.

    Raises:
        TimeoutError: it did not hold in time.
    """
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        if condition():
            return time.monotonic() - began
        time.sleep(0.2)
    raise TimeoutError(f"{condition} did not come about in {seconds:g} s")
