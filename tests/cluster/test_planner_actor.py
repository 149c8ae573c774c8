"""The planner actor on a real Ray: one a cluster, and never in a replica's way."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ray

from deployments.config import AppConfig
from hybrid_serve.negotiation.planner import ACTOR_NAME, NAMESPACE
from tests.cluster.conftest import App, chat, until
from tests.demo_app import app_values

pytestmark = pytest.mark.cluster


def config_of(folder: Path, name: str, **pool: Any) -> AppConfig:
    values = app_values(folder)
    values["pool"].update(pool, name=name)
    return AppConfig.model_validate(values)


def planners() -> list[str]:
    named = ray.util.list_named_actors(all_namespaces=True)
    return [actor["name"] for actor in named if actor["namespace"] == NAMESPACE]


def planner_id() -> str:
    actor_id: str = ray.get_actor(ACTOR_NAME, NAMESPACE)._actor_id.hex()
    return actor_id


@pytest.fixture(scope="module")
def app(pair_folder: Path, deployed: Callable[[AppConfig], Any]) -> Iterator[App]:
    with deployed(config_of(pair_folder, "planned")) as app:
        yield app


def test_what_was_predicted_is_what_the_engine_got(app: App) -> None:
    (entry,) = app.planned()
    assert entry["state"] == "running" and entry["source"] == "planner"
    assert entry["report"]["num_blocks"] == entry["predicted_num_blocks"]
    assert entry["report"]["kv_tokens"] == entry["predicted_kv_tokens"] > entry["stock_kv_tokens"]
    assert entry["differences"] == []


def test_requests_go_on_while_the_planner_is_dead_and_it_learns_again(app: App) -> None:
    planner = ray.get_actor(ACTOR_NAME, NAMESPACE)
    before = planner_id()
    stream = app.openai.chat.completions.create(**chat(max_tokens=50, stream=True))
    next(stream)
    ray.kill(planner, no_restart=False)
    assert app.openai.chat.completions.create(**chat(max_tokens=2))
    assert len(list(stream)) == 49
    assert until(lambda: ray.get(planner.ping.remote(), timeout=20)) == "pong"
    assert planner_id() == before
    (entry,) = until(app.planned)
    assert entry["state"] == "running"


def test_there_is_one_planner_and_it_outlives_the_app(
    pair_folder: Path, app: App, deployed: Callable[[AppConfig], Any]
) -> None:
    before = planner_id()
    with deployed(config_of(pair_folder, "again")) as again:
        assert [entry["pool"] for entry in again.planned()] == ["again"]
        until(lambda: app.planned() == [])
    assert planners() == [ACTOR_NAME] and planner_id() == before


def test_without_the_planner_a_replica_plans_for_itself_and_says_so(
    pair_folder: Path, deployed: Callable[[AppConfig], Any]
) -> None:
    with deployed(config_of(pair_folder, "alone", negotiation_timeout_s=0.0001)) as alone:
        stats = alone.stats()
        assert stats["plan_source"] == "local"
        assert stats["plan_note"] == "no answer from the planner within 0.0001 s"
        assert "plan 0.0 s (local: no answer from the planner" in alone.cluster.replica_log("alone")
        assert alone.openai.chat.completions.create(**chat(max_tokens=1))
        (entry,) = alone.planned()
        assert entry["state"] == "running" and "planned locally, reconciled" in entry["note"]
