"""One Ray on loopback for all cluster tests, with its own ports and temporary folder; stopped by handle."""

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import ray
from openai import OpenAI
from ray import serve
from ray.serve._private import client
from ray.serve.config import HTTPOptions

from deployments.builder import build
from deployments.config import AppConfig
from deployments.local_haproxy import free_port
from deployments.local_ray import private_ray
from hybrid_serve.negotiation.planner import ACTOR_NAME, NAMESPACE

# Ray's own is ten, in which a test that waits for a metric waits for nothing else. Costs 3 % of a core.
EVERY_SECOND = {"metrics_report_interval_ms": 1000}


@dataclass(frozen=True)
class Cluster:
    """The running Ray with Ray Serve on it."""

    port: int
    logs: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def replica_log(self, pool: str) -> str:
        """What all replicas of a pool have logged, oldest first."""
        files = sorted((self.logs / "serve").glob(f"replica_*_{pool}_*.log"), key=lambda file: file.stat().st_mtime)
        return "\n".join(re.sub(r"^.*? -- ", "", file.read_text(), flags=re.M) for file in files)


@dataclass(frozen=True)
class App:
    """One deployed app and its clients."""

    cluster: Cluster
    config: AppConfig

    @property
    def url(self) -> str:
        return self.cluster.url

    @property
    def openai(self) -> OpenAI:
        return OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=60)

    def stats(self) -> dict[str, Any]:
        """Of one replica."""
        handle = serve.get_deployment_handle(self.config.pool.name, "default")
        stats: dict[str, Any] = handle.stats.remote().result(timeout_s=20)
        return stats

    def running(self) -> int:
        running: int = self.stats()["engine"]["running"]
        return running

    def planned(self) -> list[dict[str, Any]]:
        """The planner's entries for this app's pool."""
        status = ray.get(ray.get_actor(ACTOR_NAME, NAMESPACE).status.remote(), timeout=20)
        return [entry for entry in status["replicas"] if entry["pool"] == self.config.pool.name]


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    port = free_port()
    with (
        private_ray(num_cpus=4, object_store_memory=128 * 2**20, log_to_driver=False, _system_config=EVERY_SECOND),
        pytest.MonkeyPatch.context() as patch,
    ):
        # Whoever deploys or deletes an app looks every second whether that is done, and these tests do little else.
        # Ray has no option for it; a release that has not this constant any more fails here.
        patch.setattr(client, "CLIENT_POLLING_INTERVAL_S", 0.1)
        serve.start(http_options=HTTPOptions(host="127.0.0.1", port=port))
        yield Cluster(port, Path(ray._private.worker._global_node.get_logs_dir_path()))
        serve.shutdown()


@pytest.fixture(scope="session")
def deployed(cluster: Cluster) -> Callable[[AppConfig], Any]:
    """`with deployed(config) as app:` runs one app until the block ends."""

    @contextmanager
    def deploy(config: AppConfig) -> Iterator[App]:
        serve.run(build(config))
        try:
            yield App(cluster, config)
        finally:
            serve.delete("default")

    return deploy


def pids_of(pool: str) -> list[int]:
    """Process ids of a pool's running replicas."""
    deployment = serve.context._get_global_client().get_serve_details()["applications"]["default"]["deployments"][pool]
    return [int(replica["pid"]) for replica in deployment["replicas"] if replica["state"] == "RUNNING"]


def until(condition: Callable[[], Any], seconds: float = 60.0) -> Any:
    """The condition's value as soon as it is true."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.05)
    raise AssertionError(f"it did not come about in {seconds:g} s: {condition}")


def chat(**values: Any) -> dict[str, Any]:
    return {"model": "demo", "messages": [{"role": "user", "content": "Hello"}], **values}


def leave_after_first_event(url: str, body: dict[str, Any]) -> None:
    """A client that goes away in the middle of a stream."""
    with httpx.stream("POST", url, json=body, timeout=30) as response:
        assert response.status_code == 200, response.read()
        next(response.iter_lines())
