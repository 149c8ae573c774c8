"""A replica with a real vLLM that is ordered to another K and back, while clients ask: one process, one engine."""

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import httpx
import psutil
import pytest
import ray
from ray import serve

from benchmarks.local_fleet import engine_cores_of
from deployments.builder import build
from deployments.config import AppConfig
from deployments.fleet import plan_model
from deployments.loading import load_config
from hybrid_serve.rollout.wire import ReplicaRun
from tests.cluster.conftest import Cluster, pids_of, until
from tests.cluster.ordering_planner import ordering_planner

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]


def config(k: int = 7, **overrides: Any) -> AppConfig:
    return load_config(
        None,
        {
            "pool.max_replicas": 1,
            "pool.health_check_period_s": 1.0,
            "limits.max_queue_s": 120.0,
            "engine.num_speculative_tokens": k,
            **overrides,
        },
    )


class Replica:
    """The one replica of the demo, and the planner that orders it about."""

    def __init__(self, cluster: Cluster, planner: Any) -> None:
        self.url = cluster.url
        self.cluster = cluster
        self._planner = planner

    def run(self) -> ReplicaRun | None:
        runs = ray.get(self._planner.runs.remote(), timeout=20)
        return next(iter(runs.values()), None)

    def order(self, digest: str, drain_s: float = 60.0) -> None:
        (replica,) = ray.get(self._planner.runs.remote(), timeout=20)
        ray.get(self._planner.order.remote(replica, digest, drain_s), timeout=20)

    def knows(self, digest: str, k: int, **overrides: Any) -> None:
        (pool,) = plan_model(config(k, **overrides).served[0]).pools
        ray.get(self._planner.knows.remote(digest, replace(pool.config, generation=digest)), timeout=20)

    def serves(self, digest: str) -> bool:
        run = self.run()
        return run is not None and (run.digest, run.phase) == (digest, "serving")

    def stats(self) -> dict[str, Any]:
        stats: dict[str, Any] = serve.get_deployment_handle("cpu", "default").stats.remote().result(timeout_s=20)
        return stats

    def cores(self) -> list[psutil.Process]:
        (pid,) = pids_of("cpu")
        return engine_cores_of(psutil.Process(pid))

    def asked(self, begin: Callable[[], None], done: Callable[[], bool]) -> list[httpx.Response]:
        """What four clients were answered: one answer each before `begin`, then on until a little after `done`."""

        async def ask() -> list[httpx.Response]:
            answers: list[httpx.Response] = []
            answered: set[int] = set()
            ended = asyncio.Event()

            async def client(number: int) -> None:
                body = {"model": "demo", "messages": [{"role": "user", "content": f"Count to {number}."}]}
                async with httpx.AsyncClient(timeout=150) as http:
                    while not ended.is_set():
                        asked = body | {"max_tokens": 40, "temperature": 0, "stream": number % 2 == 0}
                        answers.append(await http.post(f"{self.url}/v1/chat/completions", json=asked))
                        answered.add(number)

            clients = [asyncio.ensure_future(client(number)) for number in range(4)]
            deadline = time.monotonic() + 150
            while len(answered) < len(clients):
                assert time.monotonic() < deadline, f"only clients {answered} were answered"
                await asyncio.sleep(0.02)
            await asyncio.to_thread(begin)
            while not await asyncio.to_thread(done):
                assert time.monotonic() < deadline, f"it did not come about: {self.run()}"
                await asyncio.sleep(0.2)
            await asyncio.sleep(2)
            ended.set()
            await asyncio.gather(*clients)
            return answers

        return asyncio.run(ask())


@pytest.fixture(scope="module")
def replica(cluster: Cluster) -> Iterator[Replica]:
    with ordering_planner() as planner:
        serve.run(build(config()))
        try:
            replica = Replica(cluster, planner)
            until(lambda: (run := replica.run()) is not None and run.phase == "serving")
            yield replica
        finally:
            serve.delete("default")


def test_a_replica_goes_to_another_k_and_back_and_every_request_is_answered(replica: Replica) -> None:
    (process,), (core,) = pids_of("cpu"), replica.cores()
    first = replica.stats()["report"]
    for digest, k in (("five", 5), ("seven", 7)):
        replica.knows(digest, k)
        began = time.monotonic()
        answers = replica.asked(
            lambda digest=digest: replica.order(digest), lambda digest=digest: replica.serves(digest)
        )
        assert answers and all(a.status_code == 200 and '"error"' not in a.text for a in answers)
        run = until(lambda: (run := replica.run()) and run.figures and run.figures.requests > 0 and run)
        assert run.differences == () and run.failed is None
        assert len(run.figures.accepted_per_position) == k and run.figures.errors == 0
        assert run.before is not None and run.before[1].ttft_count > 0
        assert pids_of("cpu") == [process] and not core.is_running()
        (core,) = replica.cores()
        print(f"K={k} served after {time.monotonic() - began:.1f} s, with {len(answers)} answers meanwhile")
    assert replica.stats()["report"] == first
    assert "predicted = actual" in replica.cluster.replica_log("cpu")


def test_an_engine_that_does_not_start_is_replaced_by_the_old_one(replica: Replica) -> None:
    replica.knows("failing", 5, **{"engine.vllm_args.worker_extension_cls": "tests.no.such.Extension"})
    was = replica.run()
    assert was is not None

    def back() -> bool:
        run = replica.run()
        return run is not None and run.failed is not None and run.phase == "serving"

    answers = replica.asked(lambda: replica.order("failing"), back)
    assert answers and all(a.status_code == 200 and '"error"' not in a.text for a in answers)
    run = replica.run()
    assert run is not None and run.failed is not None and run.failed.digest == "failing" and run.digest == was.digest
    assert len(replica.cores()) == 1


def test_a_stream_that_outlives_the_drain_ends_with_an_error_event(replica: Replica) -> None:
    # Hot sampling, so that hardly a guess is accepted, and eight at once: no machine is through with them in the drain.
    body = {"model": "demo", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1900, "stream": True}
    body |= {"ignore_eos": True, "temperature": 2.0}

    async def stream(begun: asyncio.Event) -> list[str]:
        lines = []
        async with (
            httpx.AsyncClient(timeout=60) as http,
            http.stream("POST", f"{replica.url}/v1/chat/completions", json=body) as response,
        ):
            async for line in response.aiter_lines():
                begun.set()
                lines += [line] if line else []
        return lines

    async def streams() -> list[list[str]]:
        begun = [asyncio.Event() for _ in range(8)]
        running = [asyncio.ensure_future(stream(event)) for event in begun]
        await asyncio.wait_for(asyncio.gather(*(event.wait() for event in begun)), 60)
        await asyncio.to_thread(replica.order, "three", 0.2)
        return await asyncio.gather(*running)

    replica.knows("three", 3)
    for lines in asyncio.run(streams()):
        assert lines[-1] == "data: [DONE]" and '"error"' in lines[-2], lines[-2:]
    until(lambda: replica.serves("three"), seconds=120)
    run = replica.run()
    assert run is not None and run.before is not None and run.before[1].errors == 0
