"""What Ray Serve is told, from a configuration with pools of several models."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from deployments.autoscaling.options import FIGURES_PERIOD_S, WINDOW_S, facts_of
from deployments.config import AppConfig, ScalingConfig
from deployments.deployment_options import ingress_options, pool_options
from deployments.fleet import PlannedModel, plan_model
from deployments.routing.facts import ReplicaLoad
from deployments.routing.reservation import Known
from tests.demo_app import app_values
from tests.routing_fleet import Fleet, facts, request


def models_of(folder: Path, **pool: Any) -> tuple[AppConfig, dict[str, PlannedModel]]:
    values = app_values(folder)
    kind = values.pop("pool") | pool
    one = {key: values.pop(key) for key in ("model", "engine", "workload")}
    pools = [kind | {"name": "small", "kv_memory": "64MiB", "cost": 2.0}, kind | {"name": "large", "max_replicas": 3}]
    other = one | {"model": one["model"] | {"name": "other"}, "pool": kind | {"name": "apart"}}
    config = AppConfig.model_validate({"models": [one | {"pools": pools}, other], "scaling": {"utilisation": 0.5}})
    return config, {served.name: plan_model(served) for served in config.served}


def test_a_pools_policy_knows_the_pools_of_its_model_and_no_others(pair_folder: Path) -> None:
    config, models = models_of(pair_folder)
    small, large = models["demo"].pools
    told = pool_options(large, models["demo"].pools, config)["autoscaling_config"]
    kwargs = told.policy.policy_kwargs
    assert kwargs["pool"] == "large" and [pool["name"] for pool in kwargs["pools"]] == ["small", "large"]
    assert (kwargs["utilisation"], kwargs["margin"], kwargs["start_patience_s"]) == (0.5, 0.1, 600.0)
    assert (told.min_replicas, told.max_replicas) == (1, 3)
    assert told.policy.policy_function == "deployments.autoscaling.policy.PoolPolicy"
    assert kwargs["pools"][0]["cost"] == 2.0 and kwargs["pools"][0]["kv_tokens"] == small.decision.plan.kv_tokens


def test_the_ingress_is_left_as_it_is_and_reports(pair_folder: Path) -> None:
    config, _ = models_of(pair_folder)
    told = ingress_options(config, {"demo": ["cpu"]}, check_model=True, generation="")["autoscaling_config"]
    assert told.min_replicas == told.max_replicas == config.ingress.num_replicas
    assert told.policy.policy_function == "deployments.autoscaling.policy.IngressPolicy"
    assert told.metrics_interval_s == FIGURES_PERIOD_S < WINDOW_S == told.look_back_period_s


def test_a_replica_takes_as_many_requests_as_its_engine_steps_through(pair_folder: Path) -> None:
    _, models = models_of(pair_folder)
    told = facts_of(models["demo"].pools[0], 0.8)
    assert told.max_requests == 16 and told.typical_tokens == 512


def test_a_configured_number_of_requests_is_what_autoscaling_aims_at(pair_folder: Path) -> None:
    _, models = models_of(pair_folder, target_ongoing_requests=4.0)
    assert facts_of(models["demo"].pools[0], 0.8).max_requests == 5.0


@pytest.mark.parametrize("pool", [{}, {"max_ongoing_requests": 12}, {"target_ongoing_requests": 50.0}])
def test_autoscaling_counts_with_what_the_board_gives_a_replica(pair_folder: Path, pool: dict[str, Any]) -> None:
    """Otherwise a queue forms that no replica is added for. The small pool's plan holds fewer than max_num_seqs."""
    config, models = models_of(pair_folder, **pool)
    for planned in models["demo"].pools:
        limit = pool_options(planned, models["demo"].pools, config)["max_ongoing_requests"]
        fleet = Fleet()
        fleet.board.update("pool", {"a": Known(facts(10_000, max_num_seqs=16), ReplicaLoad(), limit)})
        placed = [fleet.board.reserve(request(64)) for _ in range(100)]
        assert sum(each is not None for each in placed) == facts_of(planned, 0.8).max_requests


def test_a_margin_that_would_keep_every_replica_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"not below utilisation, which is 0\.3"):
        ScalingConfig(utilisation=0.3, margin=0.3)
