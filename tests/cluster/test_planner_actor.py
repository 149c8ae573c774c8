"""The planner actor on a real Ray: one a cluster, and never in a replica's way."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
from ray import serve

from deployments.builder import build
from deployments.config import AppConfig
from deployments.local_haproxy import free_port
from hybrid_serve.cli import main
from hybrid_serve.facts.checkpoint import read_drafter
from hybrid_serve.negotiation import planner as planner_module
from hybrid_serve.negotiation.book import REPORT_PERIOD_S
from hybrid_serve.negotiation.planner import ACTOR_NAME, NAMESPACE
from tests.cluster.conftest import App, Cluster, chat, until
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
    (entry,) = until(lambda: [entry for entry in app.planned() if entry["report"]])
    assert entry["state"] == "running" and entry["source"] == "planner"
    assert entry["report"]["num_blocks"] == entry["predicted_num_blocks"]
    assert entry["report"]["kv_tokens"] == entry["predicted_kv_tokens"] > entry["stock_kv_tokens"]
    assert entry["differences"] == []


def status() -> dict[str, Any]:
    found: dict[str, Any] = ray.get(ray.get_actor(ACTOR_NAME, NAMESPACE).status.remote(), timeout=30)
    assert found["integrity"] == ""
    return found


def plan_of(app: App) -> tuple[str, str, str, int]:
    """What must not change when the planner does; the entry is there once the replica has reported to it."""
    (entry,) = until(lambda: [entry for entry in app.planned() if entry["state"] == "running"], seconds=20)
    return entry["replica_id"], entry["plan_id"], entry["generation"], entry["max_model_len"]


def test_a_planner_that_is_killed_comes_back_with_the_same_plans_and_nothing_restarts(app: App) -> None:
    before, started, agreed = plan_of(app), status()["starts"], status()["agreements"]
    actor = planner_id()
    stream = app.openai.chat.completions.create(**chat(max_tokens=100, stream=True))
    next(stream)
    os.kill(status()["pid"], signal.SIGKILL)
    killed = time.monotonic()
    assert app.openai.chat.completions.create(**chat(max_tokens=2))
    assert len(list(stream)) == 99
    assert until(lambda: status()["starts"], seconds=30) == started + 1
    assert plan_of(app) == before, "re-derived from the replica's report"
    assert time.monotonic() - killed < 6 * REPORT_PERIOD_S
    assert status()["agreements"] == agreed, "from the store"
    assert planner_id() == actor and app.stats()["replica_id"] == before[0]


def test_what_was_set_outlives_the_planner(app: App) -> None:
    planner = ray.get_actor(ACTOR_NAME, NAMESPACE)
    ray.get(planner.set_override.remote("demo", "note", {"is": "kept"}), timeout=30)
    with pytest.raises(ValueError, match="is not JSON"):
        ray.get(planner.set_override.remote("demo", "note", {1, 2}), timeout=30)
    os.kill(status()["pid"], signal.SIGKILL)
    assert ray.get(planner.overrides.remote("demo"), timeout=30) == {"note": {"is": "kept"}}
    ray.get(planner.set_override.remote("demo", "note", None), timeout=30)
    assert status()["overrides"] == {}


def test_a_replica_that_starts_while_the_planner_hangs_plans_alone_and_is_reconciled(
    pair_folder: Path, app: App, cluster: Cluster
) -> None:
    planner = psutil.Process(status()["pid"])
    planner.suspend()
    try:
        config = config_of(pair_folder, "meanwhile", negotiation_timeout_s=1)
        serve.run(build(config), name="meanwhile", route_prefix="/meanwhile")
        stats = serve.get_deployment_handle("meanwhile", "meanwhile").stats.remote().result(timeout_s=20)
        assert stats["plan_source"] == "local" and "within 1 s" in stats["plan_note"]
        assert app.openai.chat.completions.create(**chat(max_tokens=1))
    finally:
        planner.resume()
    try:
        (entry,) = until(lambda: [e for e in App(cluster, config).planned() if e["state"] == "running"], seconds=40)
        assert entry["note"].startswith("planned locally, reconciled") and entry["source"] == "planner"
    finally:
        serve.delete("meanwhile")


def test_a_replica_whose_drafter_was_retrained_in_place_is_refused_and_the_others_serve_on(
    pair_folder: Path, tmp_path: Path, app: App
) -> None:
    folder = tmp_path / "pair"
    shutil.copytree(pair_folder, folder)
    built = build(config_of(folder, "retrained", start_attempts=1))
    file = folder / "draft" / "config.json"
    before = read_drafter(str(folder / "draft")).fingerprint
    geometry = json.loads(file.read_text())
    file.write_text(json.dumps(geometry | {"num_key_value_heads": 2 * geometry["num_key_value_heads"]}))
    after = read_drafter(str(folder / "draft")).fingerprint
    assert before != after
    with pytest.raises(RuntimeError):
        serve.run(built, name="retrained", route_prefix="/retrained")
    serve.delete("retrained")
    refused = status()["refused"][-1]
    assert refused["pool"] == "retrained" and refused["model_name"] == "demo"
    assert f"its drafter has fingerprint {after}, the fleet was deployed with {before}" in refused["reason"]
    assert [entry for entry in status()["replicas"] if entry["pool"] == "retrained"] == []
    assert app.openai.chat.completions.create(**chat(max_tokens=1))


def test_the_command_shows_the_fleet(app: App) -> None:
    replica, plan, _, _ = plan_of(app)
    current = ray.get(ray.get_actor(ACTOR_NAME, NAMESPACE).rollouts.remote("default"))["default"]["current"]
    address = ray.get_runtime_context().gcs_address
    command = [sys.executable, "-m", "hybrid_serve.cli", "status", "--address", address]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert shown.returncode == 0, shown.stderr
    (line,) = (line for line in shown.stdout.splitlines() if replica in line)
    assert all(text in line for text in ("demo", "planned", "running", plan, "2,048", "= "))
    assert line.split()[-1] == str(current)
    told = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=60)
    assert replica in [entry["replica_id"] for entry in json.loads(told.stdout)["replicas"]]


def test_the_command_says_that_there_is_no_ray() -> None:
    command = [sys.executable, "-m", "hybrid_serve.cli", "status", "--address", f"127.0.0.1:{free_port()}"]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert shown.returncode == 2
    assert shown.stderr.splitlines()[-1].startswith("hybrid-serve status: no Ray at address 127.0.0.1:")


def test_the_command_says_that_there_is_no_planner(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(planner_module, "ACTOR_NAME", "none_of_this_name")
    assert main(["status"]) == 2
    assert "no planner runs in the Ray at address auto" in capsys.readouterr().err
    assert ray.is_initialized(), "a connection that was there before is left open"


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
        assert re.search(r"plan \d+\.\d s \(local: no answer from the planner", alone.cluster.replica_log("alone"))
        assert alone.openai.chat.completions.create(**chat(max_tokens=1))
        (entry,) = until(lambda: [entry for entry in alone.planned() if entry["report"]])
        assert entry["state"] == "running" and "planned locally, reconciled" in entry["note"]
