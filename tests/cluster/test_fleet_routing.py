"""Routing over three pools of unlike capacity, on a real Ray: shares, prefixes, fullness, failures."""

import asyncio
import json
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from ray import serve

from deployments.config import AppConfig
from tests.cluster.conftest import App, pids_of, until
from tests.demo_app import app_values

pytestmark = pytest.mark.cluster

MEMORY = {"small": "64MiB", "middle": "128MiB", "large": "256MiB"}


def fleet_of(
    folder: Path, limits: dict[str, Any] | None = None, pools: tuple[str, ...] = tuple(MEMORY), **fake: Any
) -> AppConfig:
    """One model in pools that differ in their KV memory."""
    values = app_values(folder, vllm_args=fake, max_num_seqs=256)
    pool = values.pop("pool")
    values["engine"].pop("kv_memory")
    values["pools"] = [{**pool, "name": name, "kv_memory": MEMORY[name]} for name in pools]
    values["limits"] = limits or {}
    values["routing"] = {"stats_period_s": 0.5}
    return AppConfig.model_validate(values)


def stats_of(pool: str) -> dict[str, Any]:
    stats: dict[str, Any] = serve.get_deployment_handle(pool, "default").stats.remote().result(timeout_s=20)
    return stats


def engine_of(pool: str) -> dict[str, Any]:
    engine: dict[str, Any] = stats_of(pool)["engine"]
    return engine


def body(prompt: str = "Hello", **values: Any) -> dict[str, Any]:
    return {"model": "demo", "messages": [{"role": "user", "content": prompt}], **values}


async def ask_all(url: str, bodies: list[dict[str, Any]], at_once: int) -> list[httpx.Response]:
    """All answers, in order, with at most so many requests at once."""
    free = asyncio.Semaphore(at_once)
    limits = httpx.Limits(max_connections=at_once)
    async with httpx.AsyncClient(timeout=60, limits=limits) as client:

        async def ask(request: dict[str, Any]) -> httpx.Response:
            async with free:
                return await client.post(f"{url}/v1/chat/completions", json=request)

        return await asyncio.gather(*(ask(request) for request in bodies))


async def stream_all(url: str, bodies: list[dict[str, Any]], begun: asyncio.Semaphore) -> list[httpx.Response]:
    """All streamed answers, at once and in order; `begun` is released whenever the first token of one has come."""
    async with httpx.AsyncClient(timeout=60, limits=httpx.Limits(max_connections=len(bodies))) as client:

        async def ask(request: dict[str, Any]) -> httpx.Response:
            async with client.stream("POST", f"{url}/v1/chat/completions", json=request) as response:
                parts: list[bytes] = []
                async for part in response.aiter_bytes():
                    if not parts:
                        begun.release()
                    parts.append(part)
                return httpx.Response(response.status_code, content=b"".join(parts))

        return await asyncio.gather(*(ask(request) for request in bodies))


@pytest.fixture(scope="module")
def fleet(pair_folder: Path, deployed: Callable[[AppConfig], Any]) -> Iterator[App]:
    limits = {"max_queued_requests": 20, "max_queue_s": 2}
    with deployed(fleet_of(pair_folder, limits, token_s=0.01, prefix_caching=True)) as app:
        yield app


def test_400_requests_of_mixed_length_are_shared_out_by_capacity(fleet: App) -> None:
    before = {pool: engine_of(pool)["finished_requests"] for pool in MEMORY}
    blocks = {pool: stats_of(pool)["report"]["num_blocks"] for pool in MEMORY}
    lengths = (20, 100, 400, 900)
    bodies = [body(f"{i} " + "x" * lengths[i % 4], max_tokens=8 + i % 7) for i in range(400)]
    answers = asyncio.run(ask_all(fleet.url, bodies, at_once=16))
    assert {answer.status_code for answer in answers} == {200}
    served = {pool: engine_of(pool)["finished_requests"] - before[pool] for pool in MEMORY}
    assert sum(served.values()) == 400
    for pool, count in served.items():
        ideal = 400 * blocks[pool] / sum(blocks.values())
        assert abs(count - ideal) <= 0.1 * ideal, (
            f"{pool} served {count}, ideal {ideal:.0f}; {served} with {blocks} blocks"
        )


def test_prompts_that_begin_alike_find_the_replica_that_has_seen_them(fleet: App) -> None:
    before = {pool: engine_of(pool) for pool in MEMORY}
    bodies = [body(f"conversation {i % 12} " * 100 + f" turn {i // 12}", max_tokens=8) for i in range(120)]
    answers = asyncio.run(ask_all(fleet.url, bodies, at_once=4))
    assert {answer.status_code for answer in answers} == {200}
    after = {pool: engine_of(pool) for pool in MEMORY}
    hits = sum(after[pool]["prefix_hits"] - before[pool]["prefix_hits"] for pool in MEMORY)
    looked_up = sum(after[pool]["prefix_queries"] - before[pool]["prefix_queries"] for pool in MEMORY)
    ideal = looked_up * (len(bodies) - 12) / len(bodies)
    assert hits >= 0.8 * ideal, f"{hits} of {looked_up} tokens reused, {ideal:.0f} if each prefix had one replica"
    assert len({pool for pool in MEMORY if after[pool]["finished_requests"] > before[pool]["finished_requests"]}) > 1


def test_above_capacity_nothing_fails_but_with_503_and_a_time_to_come_back(fleet: App) -> None:
    # No request ends before the queue's patience does, however long the sending of all 200 takes.
    bodies = [body("x" * 400, max_tokens=600) for _ in range(200)]
    began = time.monotonic()
    answers = asyncio.run(ask_all(fleet.url, bodies, at_once=200))
    took = time.monotonic() - began
    told = Counter(answer.status_code for answer in answers)
    assert set(told) == {200, 503} and told[200] >= 20, told
    for answer in answers:
        if answer.status_code == 503:
            assert 1 <= int(answer.headers["retry-after"]) <= 60
            assert answer.json()["error"]["type"] == "ServiceUnavailableError"
        else:
            assert answer.json()["usage"]["completion_tokens"] == 600
    assert took < 30, f"took {took:.1f} s: requests of 6 s each, at most 2 s in the queue, and the arrival of 200"
    assert {pool: engine_of(pool)["preemptions"] + engine_of(pool)["waiting"] for pool in MEMORY} == dict.fromkeys(
        MEMORY, 0
    )
    until(lambda: all(stats_of(pool)["reserved"] == {} for pool in MEMORY), seconds=30)


def test_a_prompt_that_no_replica_can_hold_is_refused_by_the_engine(fleet: App) -> None:
    answer = httpx.post(f"{fleet.url}/v1/chat/completions", json=body("x" * 20_000), timeout=20)
    assert answer.status_code == 400 and "maximum context length is 2048" in answer.json()["error"]["message"]


def test_models_and_health_are_the_fleets(fleet: App) -> None:
    assert httpx.get(f"{fleet.url}/health").status_code == 200
    (card,) = httpx.get(f"{fleet.url}/v1/models").json()["data"]
    assert (card["id"], card["max_model_len"]) == ("demo", 2048)


def test_requests_that_a_killed_replica_has_not_begun_to_answer_are_served_by_another(
    pair_folder: Path, deployed: Callable[[AppConfig], Any]
) -> None:
    config = fleet_of(pair_folder, pools=("small", "middle"), prefill_s=4, token_s=0.001)
    with deployed(config) as app:
        (victim,) = pids_of("middle")

        async def kill_under_load() -> list[httpx.Response]:
            bodies = [body("x" * (20 + i), max_tokens=4, stream=i % 2 == 0) for i in range(24)]
            asking = asyncio.ensure_future(ask_all(app.url, bodies, at_once=24))
            async with asyncio.timeout(60):
                while (await asyncio.to_thread(engine_of, "middle"))["running"] <= 5:
                    await asyncio.sleep(0.02)
            assert not asking.done()
            os.kill(victim, signal.SIGKILL)
            return await asking

        answers = asyncio.run(kill_under_load())
        assert [answer.status_code for answer in answers] == [200] * 24
        assert all("token3" in answer.text for answer in answers)


def test_streams_of_a_killed_replica_end_with_an_error_event_and_those_of_others_go_on(
    pair_folder: Path, deployed: Callable[[AppConfig], Any]
) -> None:
    config = fleet_of(pair_folder, pools=("small", "middle"), token_s=0.02)
    with deployed(config) as app:
        (victim,) = pids_of("middle")

        async def kill_under_load() -> tuple[list[httpx.Response], int]:
            bodies = [body("x" * (20 + i), max_tokens=400, stream=True) for i in range(16)]
            begun = asyncio.Semaphore(0)
            asking = asyncio.ensure_future(stream_all(app.url, bodies, begun))
            async with asyncio.timeout(60):
                for _ in bodies:
                    await begun.acquire()
            running = (await asyncio.to_thread(engine_of, "middle"))["running"]
            os.kill(victim, signal.SIGKILL)
            return await asking, running

        answers, lost = asyncio.run(kill_under_load())
        assert [answer.status_code for answer in answers] == [200] * 16
        events = [answer.text.strip().split("\n\n") for answer in answers]
        assert all(each[-1] == "data: [DONE]" for each in events)
        broken = [each for each in events if "error" in json.loads(each[-2].removeprefix("data: "))]
        whole = [each for each in events if len(each) == 401]
        assert len(broken) == lost > 0 and len(whole) == 16 - lost > 0


def test_an_engine_that_died_in_a_living_replica_gets_nothing_more(
    pair_folder: Path, deployed: Callable[[AppConfig], Any]
) -> None:
    config = fleet_of(pair_folder, pools=("small", "middle"), token_s=0.005)
    with deployed(config) as app:
        sick = httpx.post(f"{app.url}/fake/sick", timeout=10)
        assert sick.status_code == 200
        bodies = [body("x" * (20 + i), max_tokens=4, stream=i % 2 == 0) for i in range(40)]
        answers = asyncio.run(ask_all(app.url, bodies, at_once=8))
        assert [answer.status_code for answer in answers] == [200] * 40
        assert all("token3" in answer.text for answer in answers)
