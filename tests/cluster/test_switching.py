"""A replica that is ordered to another generation while requests come, on a real Ray."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import ray
from ray import serve

from deployments.builder import build
from deployments.config import AppConfig
from deployments.fleet import plan_model
from hybrid_serve.rollout.wire import ReplicaRun
from tests.cluster.conftest import Cluster, until
from tests.cluster.ordering_planner import ordering_planner
from tests.demo_app import app_values

pytestmark = pytest.mark.cluster


@dataclass(frozen=True)
class Fleet:
    """Two replicas of one pool, and the planner that orders them about."""

    cluster: Cluster
    planner: Any
    folder: Path

    def config(self, **engine: Any) -> AppConfig:
        values = app_values(self.folder, **{"vllm_args": {"token_s": 0.005}, **engine})
        values["pool"] |= {"name": "switched", "min_replicas": 2, "max_replicas": 2}
        values["routing"] = {"stats_period_s": 0.5}
        return AppConfig.model_validate(values)

    def knows(self, digest: str, **engine: Any) -> None:
        (pool,) = plan_model(self.config(**engine).served[0]).pools
        ray.get(self.planner.knows.remote(digest, replace(pool.config, generation=digest)), timeout=20)

    def runs(self) -> dict[str, ReplicaRun]:
        runs: dict[str, ReplicaRun] = ray.get(self.planner.runs.remote(), timeout=20)
        return runs

    def order(self, replica: str, digest: str, drain_s: float = 30.0) -> None:
        ray.get(self.planner.order.remote(replica, digest, drain_s), timeout=20)

    def digests(self) -> dict[str, str]:
        """Of the replicas that serve."""
        return {replica: run.digest for replica, run in self.runs().items() if run.phase == "serving"}

    def load(self, until_then: Callable[[], bool], at_once: int = 12, **values: Any) -> list[httpx.Response]:
        return asyncio.run(asks(self.cluster.url, until_then, at_once, values))


async def asks(url: str, done: Callable[[], bool], at_once: int, values: dict[str, Any]) -> list[httpx.Response]:
    """Clients that ask again and again until `done`, which is looked at in a thread."""
    answers: list[httpx.Response] = []
    ended = asyncio.Event()

    async def client(number: int) -> None:
        async with httpx.AsyncClient(timeout=60) as http:
            while not ended.is_set():
                prompt = [{"role": "user", "content": f"{number} " + "x" * (10 * number)}]
                body = {"model": "demo", "messages": prompt, "stream": number % 2 == 0, **values}
                answers.append(await http.post(f"{url}/v1/chat/completions", json=body))

    clients = [asyncio.ensure_future(client(number)) for number in range(at_once)]
    deadline = time.monotonic() + 60
    while not await asyncio.to_thread(done):
        assert time.monotonic() < deadline, "it did not come about in 60 s"
        await asyncio.sleep(0.05)
    await asyncio.sleep(0.5)
    ended.set()
    await asyncio.gather(*clients)
    return answers


@pytest.fixture(scope="module")
def fleet(pair_folder: Path, cluster: Cluster) -> Iterator[Fleet]:
    with ordering_planner() as planner:
        fleet = Fleet(cluster, planner, pair_folder)
        serve.run(build(fleet.config()))
        try:
            until(lambda: len(fleet.digests()) == 2, seconds=30)
            yield fleet
        finally:
            serve.delete("default")


def whole(answer: httpx.Response, tokens: int) -> bool:
    text = answer.text
    ended = "data: [DONE]" in text if answer.headers["content-type"].startswith("text/event-stream") else True
    return answer.status_code == 200 and ended and f"token{tokens - 1}" in text and '"error"' not in text


def test_no_request_fails_when_one_replica_is_ordered_to_another_generation(fleet: Fleet) -> None:
    fleet.knows("five", num_speculative_tokens=5, vllm_args={"token_s": 0.005, "start_s": 1.5})
    first, second = sorted(fleet.runs())
    bound = fleet.digests()[second]
    fleet.order(first, "five")
    answers = fleet.load(lambda: fleet.digests() == {first: "five", second: bound}, max_tokens=30)
    assert len(answers) > 50 and all(whole(answer, 30) for answer in answers), Counter(a.text[:300] for a in answers)
    run = fleet.runs()[first]
    assert run.before is not None and run.before[0] == bound and run.before[1].errors == 0
    assert run.failed is None and run.differences == () and run.device is not None

    before = fleet.runs()
    answers = fleet.load(lambda: fleet.runs()[first].figures.requests > before[first].figures.requests + 20)  # type: ignore[union-attr]
    after = fleet.runs()
    served = {name: after[name].figures.requests - before[name].figures.requests for name in after}  # type: ignore[union-attr]
    assert min(served.values()) > 10, f"both get requests: {served}"


def test_a_switch_that_fails_costs_no_request_either(fleet: Fleet) -> None:
    fleet.knows("failing", num_speculative_tokens=5, vllm_args={"start_s": 1.0, "fail": "no luck"})
    _, second = sorted(fleet.runs())
    was = fleet.digests()[second]
    fleet.order(second, "failing")

    def told() -> bool:
        run = fleet.runs()[second]
        return run.phase == "serving" and run.failed is not None

    answers = fleet.load(told, max_tokens=30)
    assert all(whole(answer, 30) for answer in answers), Counter(answer.text[:300] for answer in answers)
    run = fleet.runs()[second]
    assert run.digest == was and run.failed is not None and run.failed.reason == "no luck"
    fleet.order(second, was)


def test_requests_of_a_fleet_that_changes_all_at_once_wait_for_it(fleet: Fleet) -> None:
    fleet.knows("three", num_speculative_tokens=3, vllm_args={"token_s": 0.005, "start_s": 2.0})
    replicas = sorted(fleet.runs())
    for replica in replicas:
        fleet.order(replica, "three")
    answers = fleet.load(lambda: set(fleet.digests().values()) == {"three"} and len(fleet.digests()) == 2, max_tokens=5)
    assert all(whole(answer, 5) for answer in answers), Counter(answer.text[:300] for answer in answers)
    assert max(answer.elapsed.total_seconds() for answer in answers) > 1.0


def test_what_outlives_the_drain_ends_with_an_error_event_or_is_served_elsewhere(fleet: Fleet) -> None:
    fleet.knows("slow", num_speculative_tokens=3, vllm_args={"token_s": 0.2})
    replicas = sorted(fleet.runs())
    for replica in replicas:
        fleet.order(replica, "slow")
    until(lambda: sorted(fleet.digests().values()) == ["slow", "slow"], seconds=30)

    async def long_answers() -> list[httpx.Response]:
        body = {"model": "demo", "messages": [], "max_tokens": 25}
        async with httpx.AsyncClient(timeout=60) as http:
            asking = [
                asyncio.ensure_future(
                    http.post(f"{fleet.cluster.url}/v1/chat/completions", json={**body, "stream": number % 2 == 0})
                )
                for number in range(8)
            ]
            await asyncio.sleep(1.5)
            await asyncio.to_thread(fleet.order, replicas[0], "three", 0.5)
            return await asyncio.gather(*asking)

    answers = asyncio.run(long_answers())
    assert [answer.status_code for answer in answers] == [200] * 8
    broken = [answer for answer in answers if not whole(answer, 25)]
    assert 0 < len(broken) < 8 and all("event-stream" in answer.headers["content-type"] for answer in broken)
    for answer in broken:
        *_, event, done = answer.text.strip().split("\n\n")
        assert '"error"' in event and done == "data: [DONE]"
    until(lambda: sorted(fleet.digests().values()) == ["slow", "three"])
    assert fleet.runs()[replicas[0]].before[1].errors == 0  # type: ignore[index]
