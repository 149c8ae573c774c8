"""The fleet as Ray Serve's configuration: what `serve deploy` and KubeRay hand to Ray Serve, and to our builder."""

import re
from pathlib import Path, PurePosixPath
from typing import Any

import pydantic
import pytest
import yaml
from ray._common.utils import import_attr
from ray.serve._private.build_app import build_app
from ray.serve.deployment import deployment_to_schema
from ray.serve.schema import ServeDeploySchema
from ray.serve.scripts import _generate_config_from_file_or_import_path as generate_config
from ray.serve.scripts import convert_args_to_dict

from deployments.builder import AppArgs, app, build
from deployments.config import AppConfig
from deployments.loading import load_config
from tests.demo_app import app_values

ROOT = Path(__file__).parents[2]
FLEET = ROOT / "configs" / "fleet.yaml"


def serve_configs() -> dict[str, dict[str, Any]]:
    (service,) = yaml.safe_load_all((ROOT / "deploy" / "kuberay" / "rayservice.yaml").read_text())
    return {
        "serve.yaml": yaml.safe_load((ROOT / "deploy" / "serve.yaml").read_text()),
        "rayservice.yaml": yaml.safe_load(service["spec"]["serveConfigV2"]),
    }


@pytest.fixture(params=serve_configs())
def config(request: pytest.FixtureRequest) -> dict[str, Any]:
    return serve_configs()[request.param]


def check(config: dict[str, Any]) -> None:
    """Ray Serve ignores what it does not know; here that is an error.

    Raises:
        pydantic.ValidationError: Ray Serve itself refuses it.
    """
    known = ServeDeploySchema.model_validate(config).model_dump(exclude_unset=True, mode="json")
    assert known == config, f"Ray Serve would ignore a part of {config}"


def test_it_is_valid_by_ray_serves_own_schema(config: dict[str, Any]) -> None:
    check(config)


@pytest.mark.parametrize("change", [{"import_path": 3}, {"args": "config=x"}, {"deployments": {"h20": {}}}])
def test_ray_serves_schema_refuses_a_wrong_value(change: dict[str, Any], config: dict[str, Any]) -> None:
    config["applications"][0].update(change)
    with pytest.raises(pydantic.ValidationError):
        check(config)


def test_a_misspelt_key_is_noticed(config: dict[str, Any]) -> None:
    config["applications"][0]["arguments"] = {}
    with pytest.raises(AssertionError, match="would ignore"):
        check(config)


def test_the_app_that_it_names_is_ours_and_takes_its_arguments(config: dict[str, Any]) -> None:
    (application,) = config["applications"]
    assert import_attr(application["import_path"]) is app
    args = AppArgs.model_validate(application["args"])
    # Either from the project's folder, or where the image has a copy of it.
    path = PurePosixPath(str(args.config))
    inside = path.relative_to(_image_folder()) if path.is_absolute() else path
    assert ROOT / inside == FLEET
    configured = load_config(ROOT / inside, args.model_extra)
    assert configured.served == load_config(FLEET).served
    assert configured.ingress.num_cpus and configured.ingress.num_replicas > 1, "the ingress could be on the head only"


def _image_folder() -> str:
    """Where the image has the project, and in it the configurations."""
    lines = (ROOT / "deploy" / "kuberay" / "Dockerfile").read_text().splitlines()
    (folder,) = [line.split()[1] for line in lines if line.startswith("WORKDIR")]
    assert "COPY configs configs" in lines
    return folder


def test_the_fleet_has_the_pools_that_the_clusters_are_made_for() -> None:
    kinds = {pool.name: pool.accelerator_type for served in load_config(FLEET).served for pool in served.pools}
    assert kinds == {"h20": "H20", "h200": "H200", "l40s": "L40S"}


def test_serve_deploy_makes_the_same_of_the_file_and_of_the_documented_command() -> None:
    (words,) = re.findall(r"`serve deploy deployments:app ([^`]+)`", (ROOT / "docs" / "deploying.md").read_text())
    arguments = convert_args_to_dict(words.split())
    by_file = generate_config(str(ROOT / "deploy" / "serve.yaml"), name=None, arguments={}, runtime_env={})
    by_path = generate_config("deployments:app", name="fleet", arguments=arguments, runtime_env={})
    told = []
    for (application,) in (by_file.applications, by_path.applications):
        assert (application.name, application.import_path) == ("fleet", "deployments:app")
        args = AppArgs.model_validate(application.args)
        told.append(load_config(ROOT / str(args.config), args.model_extra))
    assert told[0] == told[1]


def test_a_built_app_can_be_told_to_ray_serve_as_a_configuration(pair_folder: Path) -> None:
    """`serve build` takes no builder with arguments; what it would write of a built app, Ray Serve takes."""
    built = build_app(build(AppConfig.model_validate(app_values(pair_folder))), name="demo")
    deployments = [deployment_to_schema(each).model_dump(exclude_unset=True) for each in built.deployments]
    application = {"name": "demo", "import_path": "deployments:app", "deployments": deployments}
    parsed = ServeDeploySchema.model_validate({"applications": [application]})
    assert {each.name for each in parsed.applications[0].deployments} == {each.name for each in built.deployments}


PAGES = ["docs/deploying.md", "deploy/kuberay/README.md", "ray_cluster.yaml", "deploy/on_premise.yaml"]


@pytest.mark.parametrize("page", PAGES)
def test_every_file_of_the_project_that_is_named_exists(page: str) -> None:
    named = re.findall(r"\b(?:configs|deploy|deployments|docs)/[\w./-]*\w", (ROOT / page).read_text())
    assert named and [name for name in named if not (ROOT / name).exists()] == []
