"""Autoscaling on a real Ray, with fake engines: cheapest pool first up, dearest first down, and no request lost."""

import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import ray
from ray import serve
from ray.exceptions import RayError
from ray.serve._private.constants import SERVE_CONTROLLER_NAME, SERVE_NAMESPACE

from deployments.config import AppConfig
from tests.cluster.conftest import App, Cluster, chat, until
from tests.demo_app import app_values

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

TOKEN_S = 0.05
LOOK_S = 20.0
"""For so long a controller that was restarted is watched: longer than a silent replica is taken for unknown."""


def config_of(folder: Path) -> AppConfig:
    """`cheap` holds 3 requests of up to 700 tokens in 16 MiB and may have 2 replicas, `dear` holds 7 in 32 MiB."""
    values = app_values(folder, vllm_args={"token_s": TOKEN_S})
    pool = values.pop("pool") | {"min_replicas": 0, "upscale_delay_s": 0.5, "downscale_delay_s": 3.0}
    # The dear one waits for longer: both delays are counted in rounds of the controller, and may end in either order.
    values["pools"] = [
        pool | {"name": "dear", "kv_memory": "32MiB", "cost": 10.0, "max_replicas": 1, "upscale_delay_s": 2.0},
        pool | {"name": "cheap", "kv_memory": "16MiB", "cost": 1.0, "max_replicas": 2},
    ]
    values["limits"] = {"max_queue_s": 120}  # requests wait for replicas that start
    return AppConfig.model_validate(values)


def targets() -> dict[str, int]:
    """What autoscaling asks for now."""
    details = serve.context._get_global_client().get_serve_details()["applications"]["default"]["deployments"]
    return {pool: details[pool]["target_num_replicas"] for pool in ("cheap", "dear")}


def states(pool: str) -> list[str]:
    """Of a pool's replicas, as the controller sees them."""
    details = serve.context._get_global_client().get_serve_details()["applications"]["default"]["deployments"]
    return [replica["state"] for replica in details[pool]["replicas"]]


def running(pool: str) -> bool:
    return "RUNNING" in states(pool)


def nothing_runs() -> bool:
    """No replica is left, not even one that stops: until the ingress has heard of that, it may still get requests."""
    return states("cheap") == states("dear") == []


class History:
    """Targets as they change, watched in the background."""

    def __init__(self) -> None:
        self.steps: list[tuple[int, int]] = []

    def look(self) -> tuple[int, int]:
        now = targets()
        step = (now["cheap"], now["dear"])
        if not self.steps or self.steps[-1] != step:
            self.steps.append(step)
        return step


@contextmanager
def watched() -> Iterator[History]:
    history, ended = History(), threading.Event()

    def watch() -> None:
        while not ended.wait(0.1):
            with suppress(RayError):
                history.look()

    thread = threading.Thread(target=watch)
    history.look()
    thread.start()
    try:
        yield history
    finally:
        ended.set()
        thread.join()


def finished_streams(cluster: Cluster) -> int:
    """How often a dear replica, of any test, said that it stops and still has requests."""
    waited = re.findall(r"to shut down: (\d+) ongoing requests", cluster.replica_log("dear"))
    return sum(int(requests) > 0 for requests in waited)


def controller_process() -> str | None:
    """Another one after the controller was started again."""
    details = serve.context._get_global_client().get_serve_details()
    process: str | None = details["controller_info"]["worker_id"]
    return process


def stream(
    app: App, tokens: int, begun: threading.Semaphore | None = None, enough: threading.Event | None = None
) -> int:
    """Tokens that came of as many as were asked for; `begun` is told of the first, and `enough` ends it before."""
    came = 0
    with app.openai.chat.completions.create(**chat(max_tokens=tokens, stream=True)) as answer:
        for chunk in answer:
            came += bool(chunk.choices[0].delta.content)
            if begun and came == 1:
                begun.release()
            if enough and enough.is_set():
                break
    return came


@pytest.fixture(scope="module")
def app(pair_folder: Path, deployed: Callable[[AppConfig], Any]) -> Iterator[App]:
    with deployed(config_of(pair_folder)) as app:
        yield app


@pytest.fixture(scope="module")
def clients() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(max_workers=32) as clients:
        yield clients


def test_without_requests_nothing_runs(app: App) -> None:
    assert targets() == {"cheap": 0, "dear": 0}


def test_the_first_request_brings_up_the_cheap_pool_alone_and_is_answered(app: App) -> None:
    with watched() as history:
        began = time.monotonic()
        assert stream(app, 3) == 3
        assert time.monotonic() - began < 90
        assert history.steps == [(0, 0), (1, 0)]
        until(lambda: history.steps[-1] == (0, 0), seconds=60)
    assert history.steps == [(0, 0), (1, 0), (0, 0)]


def test_load_fills_the_cheap_pool_then_starts_the_dear_one_and_goes_back_in_the_other_order(
    app: App, clients: ThreadPoolExecutor
) -> None:
    with watched() as history:
        waves: list[Future[int]] = []
        ended = time.monotonic() + 60
        while time.monotonic() < ended and (2, 1) not in history.steps:
            waves += [clients.submit(stream, app, 60) for _ in range(12 - sum(not each.done() for each in waves))]
            time.sleep(0.1)
        assert history.steps[-1] == (2, 1), history.steps
        last = [clients.submit(stream, app, 20 + 20 * index) for index in range(12)]
        assert [each.result(timeout=120) for each in waves] == [60] * len(waves)
        assert [each.result(timeout=120) for each in last] == [20 + 20 * index for index in range(12)]
        until(lambda: history.steps[-1] == (0, 0), seconds=90)
    ups, downs = history.steps[: history.steps.index((2, 1))], history.steps[history.steps.index((2, 1)) :]
    assert all(cheap == 2 or dear == 0 for cheap, dear in ups), (
        f"the dear pool came before the cheap one was full: {ups}"
    )
    assert downs[1] == (2, 0) and all(dear == 0 for _, dear in downs[1:]), f"the cheap pool went first: {downs}"
    assert len(history.steps) <= 8, f"it went to and fro: {history.steps}"


def test_a_replica_that_is_taken_away_finishes_its_streams_and_gets_no_new_ones(
    app: App, cluster: Cluster, clients: ThreadPoolExecutor
) -> None:
    until(nothing_runs, seconds=120)
    already = finished_streams(cluster)
    begun, enough = threading.Semaphore(0), threading.Event()

    def begin(count: int, tokens: int, ends: threading.Event | None = None) -> list[Future[int]]:
        streams = [clients.submit(stream, app, tokens, begun, ends) for _ in range(count)]
        assert all(begun.acquire(timeout=120) for _ in streams)
        return streams

    with watched() as history:
        try:
            # Two cheap replicas are full before the dear one is there: it gets what comes last.
            others = begin(4, 700, enough)
            assert states("cheap") == ["RUNNING"] * 2 and not running("dear")
            others += begin(5, 700, enough)
            assert running("dear")
            long = begin(2, 400)
            assert not any(each.done() for each in others), "a place on a cheap replica was free for the long ones"
        finally:
            enough.set()
        until(lambda: history.steps[-1][1] == 0, seconds=60)
        assert not all(each.done() for each in long), "the streams were over before the dear replica was taken away"
        meanwhile = [clients.submit(stream, app, 5) for _ in range(6)]
        assert [each.result(timeout=60) for each in meanwhile] == [5] * 6
        assert all(each.result(timeout=60) > 0 for each in others)
        assert [each.result(timeout=120) for each in long] == [400] * 2
    until(lambda: not running("dear"), seconds=60)
    assert finished_streams(cluster) > already, "the dear replica had nothing to finish"


def test_a_controller_that_is_killed_comes_back_and_takes_nothing_away_that_is_in_use(
    app: App, clients: ThreadPoolExecutor
) -> None:
    until(nothing_runs, seconds=120)
    streams: list[Future[int]] = []

    def keep_busy() -> None:
        streams.extend(clients.submit(stream, app, 200) for _ in range(4 - sum(not each.done() for each in streams)))

    def cheap_is_up() -> bool:
        keep_busy()
        return targets()["cheap"] == 2 and states("cheap") == ["RUNNING"] * 2

    until(cheap_is_up, seconds=120)
    killed = controller_process()
    ray.kill(ray.get_actor(SERVE_CONTROLLER_NAME, SERVE_NAMESPACE), no_restart=False)
    seen = set()

    def is_back() -> bool:
        keep_busy()
        with suppress(RayError):
            return controller_process() != killed
        return False

    until(is_back, seconds=120)
    ended = time.monotonic() + LOOK_S
    while time.monotonic() < ended:
        keep_busy()
        seen.add(targets()["cheap"])
        time.sleep(0.1)
    # A controller that has just begun may take a replica that still starts for a missing one, and add to the dear pool.
    assert seen == {2}
    assert [each.result(timeout=120) for each in streams] == [200] * len(streams)
    until(lambda: targets() == {"cheap": 0, "dear": 0}, seconds=60)


def test_the_controllers_log_says_why(app: App, cluster: Cluster) -> None:
    log = "\n".join(file.read_text() for file in (cluster.logs / "serve").glob("controller_*.log"))
    assert "cheap: 0 -> 1 replicas (of 0 to 2): 1 requests with" in log
    assert "autoscaling of" not in log, "a policy failed"
