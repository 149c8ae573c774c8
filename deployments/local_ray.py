"""A Ray of our own, reachable from this machine only."""

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import ray
from ray._private import ray_constants, services
from ray._private.node import Node
from ray._private.parameter import RayParams

from deployments.local_haproxy import haproxy_environment

GRACE_S = 5.0
NODE_OBJECT_STORE_BYTES = 80 * 2**20
"""The least that Ray takes is 75 MiB; requests and answers pass by gRPC."""

_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # From the HTTP proxy to the ingress by gRPC, as from the ingress to the replicas: less per chunk than actor calls.
    "RAY_SERVE_PROXY_USE_GRPC": "1",
    # Ray runs its workers, and so our engines, at niceness 15: beside anything else on the machine they would starve.
    "RAY_worker_niceness": "0",
    # A machine with few cores has better things to do than ten looks at the deployments per second.
    "RAY_SERVE_CONTROL_LOOP_INTERVAL_S": "0.3",
}


def stay_local() -> None:
    """A Ray that this process starts from now on listens on 127.0.0.1 only. Idempotent; a running Ray is left alone.

    Ray has no option for it on Linux (`ray.init(_node_ip_address="127.0.0.1")` is turned into the outer address);
    on desktops it does so by default, by this constant. To be removed when Ray has an option.
    """
    if not ray.is_initialized() and services.get_ray_address_from_environment(None, None) is None:
        _prepare()


def _prepare() -> None:
    ray_constants.ENABLE_RAY_CLUSTER = False
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)


@dataclass(frozen=True, kw_only=True)
class LocalNode:
    """A further Ray node on this machine, to try a cluster of unlike nodes without one.

    Attributes:
        labels: its node labels, e.g. {"ray.io/accelerator-type": "H200"}.
        num_cpus: CPUs that Ray believes it has.
    """

    labels: dict[str, str] = field(default_factory=dict)
    num_cpus: int = 1


@contextmanager
def private_ray(nodes: Sequence[LocalNode] = (), **options: Any) -> Iterator[tuple[Node, ...]]:
    """Ray with a temporary folder of its own on free ports; at the end all that it started is stopped.

    `options` go to `ray.init`. An already running Ray, also one named in RAY_ADDRESS, is not used. Ray's processes
    get their settings through this process's environment; what is set there already is left as it is.

    Yields Ray's own objects of the further `nodes`, in their order.
    """
    # Short: a socket's path in it may have 107 bytes.
    folder = Path(tempfile.mkdtemp(prefix="hs-ray-"))
    before = set(os.environ)
    _prepare()
    for name, value in haproxy_environment(folder).items():
        os.environ.setdefault(name, value)
    processes: list[psutil.Process] = []
    started: list[Node] = []
    try:
        ray.init("local", **{"namespace": "serve", "include_dashboard": False, "_temp_dir": str(folder), **options})
        for node in nodes:
            started.append(start_node(node))
        yield tuple(started)
    finally:
        # Before the shutdown: a process whose parent has ended is no longer found below it.
        processes = _of_ray(started)
        ray.shutdown()
        for one in started:
            one.kill_all_processes(check_alive=False, allow_graceful=True, wait=True)
        _end(processes)
        for name in set(os.environ) - before:
            if name.startswith("RAY_"):
                del os.environ[name]
        shutil.rmtree(folder, ignore_errors=True)


def start_node(node: LocalNode) -> Node:
    """One more node of the Ray that this process started. Ray's command line has no nodes on loopback for it."""
    head = ray._private.worker._global_node
    parameters = RayParams(
        gcs_address=head.gcs_address,
        node_ip_address=head.node_ip_address,
        temp_dir=head.get_temp_dir_path(),
        num_cpus=node.num_cpus,
        num_gpus=0,
        labels=dict(node.labels),
        object_store_memory=NODE_OBJECT_STORE_BYTES,
        min_worker_port=0,
        max_worker_port=0,
        node_manager_port=0,
        dashboard_agent_listen_port=0,
        include_log_monitor=False,
    )
    return Node(parameters, head=False, shutdown_at_exit=False, spawn_reaper=False)


def processes_of(node: Node) -> list[psutil.Process]:
    """The processes of one node, and all below them: replicas, engines."""
    found: list[psutil.Process] = []
    for kinds in node.all_processes.values():
        for started in kinds:
            with suppress(psutil.NoSuchProcess):
                process = psutil.Process(started.process.pid)
                found += [process, *process.children(recursive=True)]
    return found


def _of_ray(nodes: Sequence[Node]) -> list[psutil.Process]:
    """The processes of the Ray that this process started."""
    head = ray._private.worker._global_node
    return [process for node in ([head] if head else []) + list(nodes) for process in processes_of(node)]


def _end(processes: list[psutil.Process]) -> None:
    """Ends those that still run, by handle: first asked, then killed."""
    _, alive = psutil.wait_procs(processes, timeout=GRACE_S)
    for signal_name in ("terminate", "kill"):
        for process in alive:
            with suppress(psutil.NoSuchProcess):
                getattr(process, signal_name)()
        _, alive = psutil.wait_procs(alive, timeout=GRACE_S)
