"""A file for `serve deploy` with a wish in it."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from ray.serve._private.deploy_utils import get_app_code_version
from ray.serve.schema import ServeDeploySchema

from deployments.config import AppConfig
from deployments.errors import AppError
from deployments.generation import offer_of
from deployments.serve_file import serve_config
from hybrid_serve.rollout.wire import GenerationOffer
from tests.demo_app import app_values

BASE = Path(__file__).parents[2] / "deploy" / "serve.yaml"


def base() -> dict[str, Any]:
    values: dict[str, Any] = yaml.safe_load(BASE.read_text())
    return values


def wish_in(values: dict[str, Any]) -> dict[str, Any]:
    (deployment,) = values["applications"][0]["deployments"]
    assert deployment["name"] == "ingress"
    wish: dict[str, Any] = deployment["user_config"]["desired"]
    return wish


def test_only_the_ingresss_user_config_differs_so_that_nothing_restarts() -> None:
    before, after = base(), serve_config(AppConfig(), base())
    parsed = [ServeDeploySchema.model_validate(values).applications[0] for values in (before, after)]
    assert get_app_code_version(parsed[0]) == get_app_code_version(parsed[1])
    del after["applications"][0]["deployments"]
    assert after == before


def test_the_wish_is_the_configuration_as_plain_values(pair_folder: Path) -> None:
    config = AppConfig.model_validate({**app_values(pair_folder), "limits": {"max_body": "1MiB"}})
    values = serve_config(config, base(), reason="more room")
    wish = wish_in(yaml.safe_load(yaml.safe_dump(json.loads(json.dumps(values)))))
    assert AppConfig.model_validate(wish["config"]) == config and wish["reason"] == "more room"
    assert ServeDeploySchema.model_validate(values)


def test_an_offers_wish_is_pinned(pair_folder: Path) -> None:
    offer = offer_of(AppConfig.model_validate(app_values(pair_folder)), "fleet")
    assert isinstance(offer, GenerationOffer)
    assert wish_in(serve_config(offer, base()))["config"] == offer.config


def test_a_new_wish_takes_the_place_of_the_old_one_and_the_same_changes_nothing(pair_folder: Path) -> None:
    config = AppConfig.model_validate(app_values(pair_folder))
    once = serve_config(config, base())
    assert serve_config(config, once) == once
    assert serve_config(config, serve_config(AppConfig(), base(), reason="before")) == once


def test_what_else_is_set_for_deployments_is_kept() -> None:
    values = base()
    others = [{"name": "h20", "max_ongoing_requests": 9}, {"name": "ingress", "num_cpus": 2, "user_config": {"a": 1}}]
    values["applications"][0]["deployments"] = others
    pool, ingress = serve_config(AppConfig(), values)["applications"][0]["deployments"]
    assert pool == others[0] and ingress["num_cpus"] == 2 and ingress["user_config"]["a"] == 1
    assert others[1]["user_config"] == {"a": 1}, "the base is left as it was"


def test_the_application_is_found_by_name_or_because_it_is_the_only_one() -> None:
    values = base()
    values["applications"].append({**values["applications"][0], "name": "other", "route_prefix": "/other"})
    with pytest.raises(AppError, match=r"has 2 applications with import_path .* \(of ours: fleet, other\)"):
        serve_config(AppConfig(), values)
    with pytest.raises(AppError, match="has 0 applications named nowhere"):
        serve_config(AppConfig(), values, app="nowhere")
    assert "deployments" in serve_config(AppConfig(), values, app="other")["applications"][1]
