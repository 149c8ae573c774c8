"""What the builder refuses before anything is deployed, and how it sizes what it builds. No Ray is started."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from ray.serve import Application

from deployments import pool_device as pool_devices
from deployments.builder import AppArgs, app, build
from deployments.config import AppConfig
from deployments.errors import AppError
from deployments.fleet import PlannedPool, plan_model
from deployments.pool_config import PoolConfig
from deployments.pool_device import pool_device
from deployments.sizing import PoolSizing, planned_concurrency
from hybrid_serve.facts.errors import fail
from tests.demo_app import app_values


def config_of(folder: Path, pool: dict[str, Any] | None = None, **engine: Any) -> AppConfig:
    values = app_values(folder, **engine)
    values["pool"].update(pool or {})
    return AppConfig.model_validate(values)


def refusal(config: AppConfig) -> str:
    with pytest.raises(AppError) as caught:
        build(config)
    return str(caught.value)


def planned(config: AppConfig) -> PlannedPool:
    """The one pool of a configuration."""
    (served,) = config.served
    model = plan_model(served)
    assert model.problems == ()
    (pool,) = model.pools
    return pool


def test_the_demo_geometry_builds(pair_folder: Path) -> None:
    assert isinstance(build(config_of(pair_folder)), Application)


def test_the_builder_takes_serve_runs_arguments(pair_folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "app.yaml"
    file.write_text(json.dumps(app_values(pair_folder)))
    assert isinstance(app(AppArgs.model_validate({"config": str(file), "max_num_seqs": "4"})), Application)
    with pytest.raises(AppError, match=r"did you mean engine\.max_num_seqs"):
        app(AppArgs.model_validate({"config": str(file), "max_num_sqs": "4"}))


def test_more_drafted_tokens_than_the_drafter_was_trained_for(pair_folder: Path) -> None:
    text = refusal(config_of(pair_folder, num_speculative_tokens=8))
    assert "num_speculative_tokens is 8" in text and "Set num_speculative_tokens to 7 or less" in text


def test_a_drafter_given_as_target(pair_folder: Path) -> None:
    values = app_values(pair_folder)
    values["model"]["target"] = values["model"]["drafter"]
    assert "is a drafter, given as target" in refusal(AppConfig.model_validate(values))


def test_a_target_that_is_no_hybrid(pair_folder: Path, tmp_path: Path) -> None:
    config = json.loads((pair_folder / "target" / "config.json").read_text())
    config["layer_types"] = ["full_attention"] * len(config["layer_types"])
    (tmp_path / "config.json").write_text(json.dumps(config))
    values = app_values(pair_folder)
    values["model"]["target"] = str(tmp_path)
    assert "is no hybrid" in refusal(AppConfig.model_validate(values))


def test_a_drafter_made_for_another_target(pair_folder: Path, tmp_path: Path) -> None:
    config = json.loads((pair_folder / "draft" / "config.json").read_text())
    config["num_target_layers"] = 40
    (tmp_path / "config.json").write_text(json.dumps(config))
    values = app_values(pair_folder)
    values["model"]["drafter"] = str(tmp_path)
    assert "was trained for a target of 40 layers" in refusal(AppConfig.model_validate(values))


def test_too_little_memory_names_the_largest_length_that_fits(pair_folder: Path) -> None:
    text = refusal(config_of(pair_folder, max_model_len=4000, kv_memory="7MiB"))
    assert "one request of 4,000 tokens needs" in text
    largest = int(re.search(r"largest max_model_len that fits is ([\d,]+)", text)[1].replace(",", ""))
    assert isinstance(build(config_of(pair_folder, max_model_len=largest, kv_memory="7MiB")), Application)


def test_a_cpu_without_kv_memory_is_told_to_set_it(pair_folder: Path) -> None:
    assert "must be given" in refusal(config_of(pair_folder, kv_memory=None))


def test_an_unknown_accelerator_is_refused(pair_folder: Path) -> None:
    text = refusal(config_of(pair_folder, {"device": "cuda", "accelerator_type": "H2O"}))
    assert "'H2O' is not in the catalogue" in text


def test_a_gpu_pool_is_planned_for_the_gpu_it_names() -> None:
    device, known = pool_device(PoolConfig(device="cuda", accelerator_type="H200"))
    assert (device.kind, device.sm, known) == ("cuda", 90, True)


def test_a_gpu_pool_of_any_gpu_is_left_to_the_replicas_where_there_is_none(
    pair_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(kind: str) -> None:
        raise fail("No GPU is visible", "Get one")

    monkeypatch.setattr(pool_devices, "measure_device", none)
    config = config_of(pair_folder, {"device": "cuda"}, kv_memory="1MiB")
    assert pool_device(config.pool).known is False
    assert isinstance(build(config), Application)
    assert planned(config).sizing == PoolSizing(concurrency=16, target_ongoing_requests=12.8, max_ongoing_requests=28)


def test_autoscaling_follows_the_plan(pair_folder: Path) -> None:
    """A replica with a third of the memory is expected to run fewer requests; max_num_seqs bounds one with plenty.

    Ray Serve's bound is that of max_num_seqs: shorter requests than the workload's fit in larger numbers.
    """
    sizes = []
    for memory in ("1GiB", "24MiB", "8MiB"):
        pool = planned(config_of(pair_folder, kv_memory=memory))
        assert pool.decision.plan is not None
        sizes.append(pool.sizing)
        assert sizes[-1].concurrency == planned_concurrency(pool.decision.plan, pool.inputs)
    assert sizes[0] == PoolSizing(concurrency=16, target_ongoing_requests=12.8, max_ongoing_requests=28)
    assert sizes[0].concurrency > sizes[1].concurrency > sizes[2].concurrency >= 1
    for size in sizes:
        assert 1 <= size.target_ongoing_requests <= size.concurrency <= size.max_ongoing_requests == 28


def test_the_configurations_own_numbers_win(pair_folder: Path) -> None:
    config = config_of(pair_folder, {"target_ongoing_requests": 50, "max_ongoing_requests": 3})
    size = planned(config).sizing
    assert (size.target_ongoing_requests, size.max_ongoing_requests) == (3, 3)


def test_an_app_error_survives_pickling() -> None:
    import pickle

    error = pickle.loads(pickle.dumps(AppError("what and why")))
    assert isinstance(error, AppError) and str(error) == "what and why"
