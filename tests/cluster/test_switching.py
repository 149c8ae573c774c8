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

    def begun(self) -> dict[str, int]:
        """Requests of which each replica's engine has made the first token."""
        return {replica: run.figures.ttft_count for replica, run in self.runs().items() if run.figures is not None}

    def load(
        self, done: Callable[[], bool], begin: Callable[[], None] = lambda: None, least: int = 0, **values: Any
    ) -> list[httpx.Response]:
        return asyncio.run(asks(self.cluster.url, begin, done, least, values))


CLIENTS = 12
LONGEST_S = 120.0


async def asks(
    url: str, begin: Callable[[], None], done: Callable[[], bool], least: int, values: dict[str, Any]
) -> list[httpx.Response]:
    """What clients were answered that ask again and again.

    `begin` is called once each has been answered; then they go on until `done`, and until there are `least` answers.
    The last answer of each is to a request that was sent after that. Both are called in a thread.
    """
    answers: list[httpx.Response] = []
    told = [0] * CLIENTS
    ended = asyncio.Event()

    async def client(number: int) -> None:
        async with httpx.AsyncClient(timeout=60) as http:
            while not ended.is_set():
                prompt = [{"role": "user", "content": f"{number} " + "x" * (10 * number)}]
                body = {"model": "demo", "messages": prompt, "stream": number % 2 == 0, **values}
                answers.append(await http.post(f"{url}/v1/chat/completions", json=body))
                told[number] += 1

    clients = [asyncio.ensure_future(client(number)) for number in range(CLIENTS)]
    deadline = time.monotonic() + LONGEST_S

    async def comes_about(what: str, condition: Callable[[], bool]) -> None:
        while not await asyncio.to_thread(condition):
            assert not [one.result() for one in clients if one.done()], "a client has gone"
            assert time.monotonic() < deadline, f"after {LONGEST_S:g} s and {len(answers)} answers: {what}"
            await asyncio.sleep(0.02)

    await comes_about("a client had no answer", lambda: min(told) > 0)
    await asyncio.to_thread(begin)
    await comes_about("it did not come about", lambda: done() and len(answers) > least)
    before = list(told)
    await comes_about("a client had no answer since", lambda: min(map(int.__sub__, told, before)) > 1)
    ended.set()
    await asyncio.gather(*clients)
    return answers


@pytest.fixture(scope="module")
def fleet(pair_folder: Path, cluster: Cluster) -> Iterator[Fleet]:
    with ordering_planner() as planner:
        fleet = Fleet(cluster, planner, pair_folder)
        serve.run(build(fleet.config()))
        try:
            until(lambda: len(fleet.digests()) == 2)
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
    changed = {first: "five", second: bound}
    answers = fleet.load(lambda: fleet.digests() == changed, lambda: fleet.order(first, "five"), 50, max_tokens=30)
    assert len(answers) > 50 and all(whole(answer, 30) for answer in answers), Counter(a.text[:300] for a in answers)
    run = fleet.runs()[first]
    assert run.before is not None and run.before[0] == bound and run.before[1].errors == 0
    assert run.failed is None and run.differences == () and run.device is not None

    before = fleet.begun()
    both_get_requests = fleet.load(lambda: all(now > before[name] + 20 for name, now in fleet.begun().items()))
    assert all(whole(answer, 16) for answer in both_get_requests)


def test_a_switch_that_fails_costs_no_request_either(fleet: Fleet) -> None:
    fleet.knows("failing", num_speculative_tokens=5, vllm_args={"start_s": 1.0, "fail": "no luck"})
    _, second = sorted(fleet.runs())
    was = fleet.digests()[second]

    def told() -> bool:
        run = fleet.runs()[second]
        return run.phase == "serving" and run.failed is not None

    answers = fleet.load(told, lambda: fleet.order(second, "failing"), max_tokens=30)
    assert all(whole(answer, 30) for answer in answers), Counter(answer.text[:300] for answer in answers)
    run = fleet.runs()[second]
    assert run.digest == was and run.failed is not None and run.failed.reason == "no luck"
    fleet.order(second, was)


def test_requests_of_a_fleet_that_changes_all_at_once_wait_for_it(fleet: Fleet) -> None:
    # Long enough that the two are without an engine at once, however long after the other the second begins.
    fleet.knows("three", num_speculative_tokens=3, vllm_args={"token_s": 0.005, "start_s": 4.0})

    def order() -> None:
        for replica in fleet.runs():
            fleet.order(replica, "three")

    answers = fleet.load(lambda: list(fleet.digests().values()) == ["three"] * 2, order, max_tokens=5)
    assert all(whole(answer, 5) for answer in answers), Counter(answer.text[:300] for answer in answers)
    assert max(answer.elapsed.total_seconds() for answer in answers) > 1.0


def test_what_outlives_the_drain_ends_with_an_error_event_or_is_served_elsewhere(fleet: Fleet) -> None:
    fleet.knows("slow", num_speculative_tokens=3, vllm_args={"token_s": 0.2})
    fleet.knows("quick", num_speculative_tokens=3, vllm_args={"token_s": 0.005})
    first, second = sorted(fleet.runs())
    for replica in (first, second):
        fleet.order(replica, "slow")
    until(lambda: fleet.digests() == {first: "slow", second: "slow"})

    # The ingress hears a little later than the planner that both serve again.
    answers = fleet.load(lambda: min(fleet.begun().values()) > 0, max_tokens=1)
    told = until(lambda: sum((begun := fleet.begun()).values()) == len(answers) and begun)

    async def asked(http: httpx.AsyncClient, stream: bool) -> list[asyncio.Future[httpx.Response]]:
        """Four more requests of 8 s, once all have begun."""
        body = {"model": "demo", "messages": [], "max_tokens": 40, "stream": stream}
        url, already = f"{fleet.cluster.url}/v1/chat/completions", sum(fleet.begun().values())
        asking = [asyncio.ensure_future(http.post(url, json=body)) for _ in range(4)]
        await asyncio.to_thread(until, lambda: sum(fleet.begun().values()) == already + 4)
        return asking

    async def long_answers() -> tuple[int, list[httpx.Response]]:
        """How many streams `first` had when it was ordered away, and all answers."""
        async with httpx.AsyncClient(timeout=60) as http:
            streams = await asked(http, stream=True)
            streaming = fleet.begun()
            others = await asked(http, stream=False)
            both = fleet.begun()
            assert all(told[each] < streaming[each] < both[each] for each in told), f"{told}, {streaming}, {both}"
            await asyncio.to_thread(fleet.order, first, "quick", 0.5)
            return streaming[first] - told[first], await asyncio.gather(*streams, *others)

    on_first, answers = asyncio.run(long_answers())
    assert {answer.status_code for answer in answers} == {200}
    broken = [answer for answer in answers if not whole(answer, 40)]
    assert len(broken) == on_first and all("event-stream" in answer.headers["content-type"] for answer in broken)
    for answer in broken:
        *_, event, done = answer.text.strip().split("\n\n")
        assert '"error"' in event and done == "data: [DONE]"
    until(lambda: fleet.digests() == {first: "quick", second: "slow"})
    assert fleet.runs()[first].before[1].errors == 0  # type: ignore[index]
