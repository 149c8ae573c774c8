"""Ray's own Prometheus endpoint shows every documented metric, no other, and forgets replicas that stopped."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
import ray

from deployments.config import AppConfig
from deployments.generation import offer_of
from hybrid_serve import metrics
from hybrid_serve.negotiation.planner import ACTOR_NAME, NAMESPACE
from hybrid_serve.rollout.wire import GenerationOffer, RolloutOptions
from tests.cluster.conftest import App, Cluster, chat, until
from tests.demo_app import app_values, demo_offer
from tests.prometheus import Sample, of_pool, scraped

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def app(pair_folder: Path, deployed: Callable[[AppConfig], Any]) -> Iterator[App]:
    values = app_values(pair_folder, vllm_args={"token_s": 0.05})
    values["pool"]["name"] = "measured"
    values["limits"] = {"max_queued_requests": 1, "max_queue_s": 1.0}
    with deployed(AppConfig.model_validate(values)) as app:
        yield app


def test_every_documented_metric_is_exported_and_no_other(app: App, pair_folder: Path) -> None:
    planner = ray.get_actor(ACTOR_NAME, NAMESPACE)
    ray.get(planner.negotiate.remote(hopeless_offer(pair_folder)))
    overload(app)
    roll_back(pair_folder)
    wanted = {metric.exported for metric in metrics.ALL}
    with suppress(AssertionError):  # which ones are missing is said below
        until(lambda: {sample.name for sample in scraped()} >= wanted, seconds=45)
    assert {sample.name for sample in scraped()} == wanted
    for sample in scraped():
        (metric,) = (each for each in metrics.ALL if each.exported == sample.name)
        assert set(metric.tags) <= set(sample.labels), sample


def hopeless_offer(folder: Path) -> Any:
    """Of a replica with too little memory for a single request."""
    return demo_offer(folder, replica_id="hopeless", kv_memory="64KiB")


def roll_back(folder: Path) -> None:
    """A rollout to a generation whose engine does not start: its gate fails, and the old one is back."""
    values = app_values(folder, vllm_args={"fail": "for the metrics"})
    values["pool"]["name"] = "measured"
    offer = offer_of(AppConfig.model_validate(values), "default")
    assert isinstance(offer, GenerationOffer)
    planner = ray.get_actor(ACTOR_NAME, NAMESPACE)
    options = RolloutOptions(allow_outage=True, bake_s=0.0)
    begun = until(lambda: ray.get(planner.begin.remote(offer, options, "a test")).get("started"), seconds=30)

    def ended() -> bool:
        last = ray.get(planner.rollouts.remote("default"))["default"]["last"]
        return last is not None and last["name"] == begun

    until(ended)


def overload(app: App) -> None:
    """Asks for more at once than runs and waits, so that one request at least is answered 503."""
    with httpx.Client(timeout=60, limits=httpx.Limits(max_connections=None)) as client:
        url, body = f"{app.url}/v1/chat/completions", chat(max_tokens=40)
        with ThreadPoolExecutor(40) as pool:
            statuses = list(pool.map(lambda _: client.post(url, json=body).status_code, range(40)))
    assert set(statuses) == {200, 503}


def test_the_figures_are_those_of_the_replica(app: App) -> None:
    stats = until(lambda: app.stats() if of_pool("measured", "kv_tokens_actual") else None)
    (info,) = of_pool("measured", "plan_info")
    (entry,) = app.planned()
    assert info.labels["plan_id"] == entry["plan_id"] and info.labels["source"] == "planner" and info.value == 1
    assert info.labels["replica"] == stats["replica_id"] and info.labels["app"] == "default"
    (predicted,), (actual,) = of_pool("measured", "kv_tokens_predicted"), of_pool("measured", "kv_tokens_actual")
    assert predicted.value == actual.value == stats["report"]["kv_tokens"]
    (groups,), (wrong,) = of_pool("measured", "kv_groups"), of_pool("measured", "plan_differences")
    assert groups.value == len(stats["report"]["groups"]) and wrong.value == 0


def test_requests_in_the_engine_show(app: App) -> None:
    stream = app.openai.chat.completions.create(**chat(max_tokens=1_000, stream=True))
    next(stream)

    def seen() -> bool:
        running = [each.value for each in of_pool("measured", "requests") if each.labels["state"] == "running"]
        reserved = [each.value for each in of_pool("measured", "kv_tokens_reserved")]
        return running == [1.0] and reserved != [] and reserved[0] > 0

    until(seen, seconds=45)
    stream.close()


def test_a_planner_that_is_restarted_is_counted(app: App) -> None:
    def starts() -> float:
        return sum(each.value for each in scraped() if each.name == metrics.PLANNER_STARTS.exported)

    before = until(starts, seconds=45)
    ray.kill(ray.get_actor(ACTOR_NAME, NAMESPACE), no_restart=False)
    until(lambda: starts() == before + 1, seconds=45)


def test_a_replica_that_stopped_is_forgotten(
    app: App, cluster: Cluster, pair_folder: Path, deployed: Callable[[AppConfig], Any]
) -> None:
    values = app_values(pair_folder)
    values["pool"]["name"] = "another"
    with deployed(AppConfig.model_validate(values)):
        until(lambda: of_pool("another", "kv_groups"), seconds=45)
    until(lambda: not any(each.labels.get("pool") in ("another", "measured") for each in live()), seconds=60)


def live() -> list[Sample]:
    return [each for each in scraped() if not each.name.endswith("_total")]
