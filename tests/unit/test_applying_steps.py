"""What a generation is deployed as over what is bound: versions and actor options that stay, pools that wait."""

from collections.abc import Mapping
from copy import copy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.serve._private.build_app import build_app
from ray.serve._private.deployment_info import DeploymentInfo
from ray.serve.deployment import Deployment
from ray.serve.schema import ApplicationStatus

from deployments import applying
from deployments.applying import ApplyError, _as_bound, _step_to
from deployments.binding import Binding
from deployments.builder import application_of
from deployments.config import AppConfig
from deployments.deployment_options import PLACEMENT
from deployments.errors import last_exception
from deployments.generation import offer_of
from hybrid_serve.rollout.wire import GenerationOffer
from tests.demo_app import app_values

ADDED: dict[str, Any] = {"working_dir": "gcs://app.zip", "env_vars": {"OF_THE_APP": "1"}}
"""What Ray Serve merges into the actor options of an app whose file has a runtime_env."""


def pools(folder: Path, *names: str, **fields: Any) -> dict[str, Any]:
    values = app_values(folder)
    pool = values.pop("pool")
    values["pools"] = [{**pool, "name": name, **fields} for name in names]
    return values


def offered(values: dict[str, Any]) -> GenerationOffer:
    offer = offer_of(AppConfig.model_validate(values), "app")
    assert isinstance(offer, GenerationOffer), str(offer)
    return offer


def deployments_of(offer: GenerationOffer) -> list[Deployment]:
    return build_app(application_of(offer), name="app").deployments


def bound_to(offer: GenerationOffer) -> dict[str, Binding]:
    """As Ray Serve has it after `serve deploy` of a file with a runtime_env."""
    found = {}
    for one in deployments_of(offer):
        config = copy(one._replica_config)
        own = one.ray_actor_options["runtime_env"]
        merged = {**ADDED, **own, "env_vars": {**ADDED["env_vars"], **own["env_vars"]}}
        config.ray_actor_options = {**one.ray_actor_options, "runtime_env": merged}
        info = DeploymentInfo(one._deployment_config, config, 0, "", version="of-the-file")
        found[one.name] = Binding(info, "/")
    return found


def over(offer: GenerationOffer, bound: Mapping[str, Binding], restart: Mapping[str, str]) -> dict[str, Deployment]:
    whole = _step_to(offer, bound, restart)
    return {one.name: _as_bound(one, bound.get(one.name), bound, whole, restart) for one in deployments_of(whole)}


def test_what_keeps_its_place_keeps_its_version_and_all_of_its_actor_options(pair_folder: Path) -> None:
    bound = bound_to(offered(pools(pair_folder, "a", "b")))
    values = pools(pair_folder, "a", "b", max_replicas=5)
    values["engine"]["num_speculative_tokens"] = 5
    new = over(offered(values), bound, {})
    assert set(new) == {"a", "b", "ingress"}
    for name, one in new.items():
        assert one.version == "of-the-file" and one.ray_actor_options == bound[name].actor_options
    assert new["a"].init_args[0].engine.num_speculative_tokens == 5


def test_a_new_place_has_the_apps_own_environment_and_lacks_what_the_old_place_had(pair_folder: Path) -> None:
    bound = bound_to(offered(pools(pair_folder, "a", env={"OLD": "1", "BOTH": "1"}, resources={"old": 1})))
    new = over(offered(pools(pair_folder, "a", env={"NEW": "1", "BOTH": "2"}, num_cpus=3)), bound, {"a": "v2"})["a"]
    assert new.version == "of-the-file", "Ray Serve sees other actor options"
    options = new.ray_actor_options
    assert options["num_cpus"] == 3 and "old" not in options.get("resources", {})
    variables = options["runtime_env"]["env_vars"]
    assert (variables["NEW"], variables["BOTH"], variables["OF_THE_APP"]) == ("1", "2", "1") and "OLD" not in variables
    assert options["runtime_env"]["working_dir"] == "gcs://app.zip"
    assert variables[PLACEMENT] != bound["a"].actor_options["runtime_env"]["env_vars"][PLACEMENT]


def test_a_pool_that_comes_is_in_the_apps_environment(pair_folder: Path) -> None:
    new = over(offered(pools(pair_folder, "a", "b")), bound_to(offered(pools(pair_folder, "a"))), {})["b"]
    assert new.ray_actor_options["runtime_env"]["working_dir"] == "gcs://app.zip"
    assert new.ray_actor_options["runtime_env"]["env_vars"]["OF_THE_APP"] == "1"


def test_the_same_place_is_replaced_only_if_it_is_named_and_only_once(pair_folder: Path) -> None:
    old, new = offered(pools(pair_folder, "a", "b")), offered(pools(pair_folder, "a", "b", cost=2))
    versions = {name: one.version for name, one in over(new, bound_to(old), {"a": "v2"}).items()}
    assert versions == {"a": "v2", "b": "of-the-file", "ingress": "of-the-file"}
    assert {one.version for one in over(new, bound_to(new), {"a": "v2"}).values()} == {"of-the-file"}


def test_pools_that_are_not_named_wait_for_their_new_place(pair_folder: Path) -> None:
    """A pool at a time, as the planner names them; what comes and goes does so with the last."""
    bound = bound_to(offered(pools(pair_folder, "a", "b", "gone")))
    wanted = pools(pair_folder, "a", "b", num_cpus=3)
    wanted["pools"] += pools(pair_folder, "new")["pools"]
    offer = offered(wanted)
    first = _step_to(offer, bound, {"a": "v"})
    assert first.digest == f"{offer.digest} but b, gone"
    assert set(first.pools) == {"a", "b", "gone"} and first.pools["a"] == offer.pools["a"]
    for name in ("b", "gone"):
        assert first.pools[name].config == bound[name].arguments[0]
    with_new = _step_to(offer, bound, {"a": "v", "new": "v"})
    assert set(with_new.pools) == {"a", "b", "gone", "new"}
    assert _step_to(offer, bound, {"a": "v", "b": "v"}) is offer


def test_a_pool_that_waits_is_deployed_as_it_is(pair_folder: Path) -> None:
    bound = bound_to(offered(pools(pair_folder, "a", "b", min_replicas=1, max_replicas=2)))
    deployment = over(offered(pools(pair_folder, "a", "b", num_cpus=3, max_replicas=9)), bound, {"a": "v"})["b"]
    assert deployment.ray_actor_options == bound["b"].actor_options
    assert deployment._deployment_config.autoscaling_config.max_replicas == 2
    generation = deployment._deployment_config.autoscaling_config.policy.policy_kwargs["generation"]
    assert generation == bound["b"].generation


def test_what_a_deployed_file_wants_stays_wanted(pair_folder: Path) -> None:
    """It may wait for the end of the rollout that is applied."""
    bound = bound_to(offered(pools(pair_folder, "a")))
    wish = {"desired": {"config": {"limits": {"retries": 1}}}}
    bound["ingress"].info.deployment_config.user_config = wish
    told = over(offered(pools(pair_folder, "a", "b")), bound, {})["ingress"].user_config
    assert told["desired"] == wish["desired"] and told["services"] == {"demo": ["a", "b"]} and "limits" in told


@pytest.mark.parametrize("status", [ApplicationStatus.DELETING, ApplicationStatus.NOT_STARTED])
def test_an_app_that_is_deleted_meanwhile_is_not_brought_back(
    pair_folder: Path, monkeypatch: pytest.MonkeyPatch, status: ApplicationStatus
) -> None:
    offer = offered(pools(pair_folder, "a"))
    bound = bound_to(offer)
    bound["ingress"].info.replica_config.init_kwargs["origin"] = "of the file"
    done: list[str] = []

    class Client:
        def get_serve_status(self, app: str) -> Any:
            done.append("asked")
            return SimpleNamespace(app_status=SimpleNamespace(status=status))

        def deploy_applications(self, *args: Any, **how: Any) -> None:
            done.append("deployed")

    monkeypatch.setattr(applying, "_get_global_client", Client)
    monkeypatch.setattr(applying, "bindings_of", lambda app: bound)
    monkeypatch.setattr(applying, "remember", lambda offer, origin: done.append("remembered"))
    with pytest.raises(ApplyError, match=f"'app' was deleted .{status.value}.: deploy it first"):
        applying.apply(offer, {})
    assert done == ["asked"]


def test_the_last_exception_of_a_traceback_comes_first() -> None:
    message = (
        "It failed.\nTraceback:\n  File x\nRuntimeError: Traceback\n  File y\npkg.EngineStartError: no memory\nat all"
    )
    assert last_exception(message) == "pkg.EngineStartError: no memory\nat all"
    assert last_exception("plain text") == "plain text"
