"""A generation handed to Ray Serve over a running one: what stays, what newcomers get, what is taken in place."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import ray
import yaml
from ray import serve
from ray.serve.context import _get_global_client
from ray.serve.schema import APIType, ServeDeploySchema

from deployments.applying import ApplyError, apply
from deployments.binding import bindings_of, bound_generation
from deployments.config import AppConfig
from deployments.generation import offer_of
from hybrid_serve.rollout.wire import GenerationOffer
from tests.cluster.conftest import Cluster, chat, until
from tests.demo_app import app_values

pytestmark = pytest.mark.cluster

APP = "default"


def offered(values: dict[str, Any]) -> GenerationOffer:
    offer = offer_of(AppConfig.model_validate(values), APP)
    assert isinstance(offer, GenerationOffer), str(offer)
    return offer


def applied(values: dict[str, Any], **how: Any) -> GenerationOffer:
    """Applied in a Ray task, as the planner does it."""
    offer = offered(values)
    ray.get(ray.remote(num_cpus=0)(apply).remote(offer, how.pop("restart", {}), **how), timeout=120)
    return offer


def replicas() -> dict[str, set[str]]:
    """Ids of the replicas that run or are about to, by deployment."""
    deployments = _get_global_client().get_serve_details()["applications"][APP]["deployments"]
    return {
        name: {one["replica_id"] for one in deployment["replicas"] if one["state"] != "STOPPING"}
        for name, deployment in deployments.items()
    }


def control_loops() -> int:
    """How often Ray Serve's controller has compared what is deployed with what is wanted, and acted on it."""
    metrics = _get_global_client()._controller.get_health_metrics.remote()
    return int(ray.get(metrics, timeout=30)["num_control_loops"])


def is_declared() -> bool:
    """Whether the app is one of `serve deploy`, as KubeRay asks for it."""
    found = _get_global_client()._controller.get_serve_instance_details.remote(APIType.DECLARATIVE)
    return APP in ray.get(found)["applications"]


def status_of(url: str, size: int) -> int:
    return httpx.post(f"{url}/v1/chat/completions", json=chat(user="x" * size), timeout=30).status_code


@contextmanager
def declared(folder: Path, values: dict[str, Any]) -> Iterator[Callable[..., None]]:
    """The app deployed as `serve deploy` does it; answers how to deploy the file again, also with something changed."""
    file = folder / "app.yaml"
    file.write_text(yaml.safe_dump(values))
    application = {"name": APP, "import_path": "deployments:app", "route_prefix": "/", "args": {"config": str(file)}}

    def deploy(**changes: Any) -> None:
        config = ServeDeploySchema.model_validate({"applications": [{**application, **changes}]})
        _get_global_client().deploy_apps(config)
        # An app that is built again is deploying from now on, until what was built is there.
        until(lambda: is_declared() and serve.status().applications[APP].status == "RUNNING", seconds=120)

    deploy()
    try:
        yield deploy
    finally:
        serve.delete(APP)
        # A controller that is killed deploys the last file again when it comes back, deleted or not.
        _get_global_client().deploy_apps(ServeDeploySchema(applications=[]))


def file_with_wish(user_config: dict[str, Any]) -> dict[str, Any]:
    return {"deployments": [{"name": "ingress", "user_config": user_config}]}


def changed(folder: Path) -> dict[str, Any]:
    """The app of `app_values` with a change of every kind that restarts no replica here."""
    values = app_values(folder, num_speculative_tokens=5)
    values["pool"]["max_replicas"] = 3
    values["limits"] = {"max_body": 2000}
    values["routing"] = {"stats_period_s": 0.5}
    values["ingress"] = {"access_log": True}
    return values


def check_taken_in_place(before: dict[str, set[str]], url: str, offer: GenerationOffer) -> None:
    assert replicas() == before
    binding = bindings_of(APP)["cpu"]
    (config,) = binding.arguments
    assert config.engine.num_speculative_tokens == 5 and config.generation == offer.digest == binding.generation
    assert binding.info.deployment_config.autoscaling_config.max_replicas == 3
    assert binding.info.deployment_config.request_router_config.request_routing_stats_period_s == 0.5
    bound = bound_generation(APP)
    assert bound is not None and bound.by_rollout and bound.offer == offer
    until(lambda: status_of(url, 3000) == 413, seconds=30)
    assert status_of(url, 10) == 200
    looked = control_loops()
    until(lambda: control_loops() >= looked + 2)  # the one that is on its way, and a whole one
    assert replicas() == before, "not even after Ray Serve has had the time"


def test_a_generation_is_taken_without_a_restart_and_newcomers_are_of_it(
    pair_folder: Path, cluster: Cluster, deployed: Callable[[AppConfig], Any]
) -> None:
    with deployed(AppConfig.model_validate(app_values(pair_folder))) as app:
        before = replicas()
        assert status_of(app.url, 3000) == 200
        assert " POST / 200 " not in _ingress_log(cluster, before)
        offer = applied(changed(pair_folder))
        check_taken_in_place(before, app.url, offer)
        until(lambda: " POST / 200 " in _ingress_log(cluster, before))
        (old,) = app.planned()
        ray.kill(ray.get_actor(f"SERVE_REPLICA::{APP}#cpu#{old['replica_id']}", namespace="serve"))
        (new,) = until(
            lambda: [one for one in app.planned() if one["replica_id"] != old["replica_id"] and one["report"]]
        )
        plans = [one.pools["cpu"].plan_id for one in (offered(app_values(pair_folder)), offer)]
        assert plans[0] != plans[1] and [old["plan_id"], new["plan_id"]] == plans


def _ingress_log(cluster: Cluster, before: dict[str, set[str]]) -> str:
    """Of the one ingress replica that has run all along."""
    (replica,) = before["ingress"]
    (file,) = cluster.logs.glob(f"serve/replica_*ingress*{replica}.log")
    return file.read_text()


def test_applying_the_same_again_does_nothing(pair_folder: Path, deployed: Callable[[AppConfig], Any]) -> None:
    with deployed(AppConfig.model_validate(app_values(pair_folder))):
        before = replicas()
        offer = offered(changed(pair_folder))
        for _ in range(2):
            apply(offer, {"cpu": "forced-once"}, timeout_s=60)
        forced = replicas()
        assert forced["ingress"] == before["ingress"] and not forced["cpu"] & before["cpu"]
        apply(offer, {"cpu": "forced-once"}, timeout_s=60)
        apply(offer, {}, timeout_s=60)
        assert replicas() == forced


def test_a_deployed_file_is_applied_over_and_deployed_again_without_a_restart(
    pair_folder: Path, cluster: Cluster, tmp_path: Path
) -> None:
    with declared(tmp_path, app_values(pair_folder)) as deploy:
        before = replicas()
        first = bound_generation(APP)
        assert first is not None and not first.by_rollout and is_declared()
        offer = applied(changed(pair_folder))
        check_taken_in_place(before, cluster.url, offer)
        assert not is_declared()
        deploy()
        check_taken_in_place(before, cluster.url, offer)
        assert is_declared()


def test_other_arguments_of_a_file_count_again_after_a_rollout(
    pair_folder: Path, cluster: Cluster, tmp_path: Path
) -> None:
    with declared(tmp_path, app_values(pair_folder)) as deploy:
        before = replicas()
        applied(changed(pair_folder))
        deploy(args={"config": str(tmp_path / "app.yaml"), "max_num_seqs": 8})
        until(lambda: all(not now & before[name] for name, now in replicas().items()))
        bound = bound_generation(APP)
        assert bound is not None and not bound.by_rollout
        assert bindings_of(APP)["cpu"].arguments[0].engine.max_num_seqs == 8
        assert status_of(cluster.url, 3000) == 200


def test_another_app_of_the_same_arguments_is_built_as_it_is_written(
    pair_folder: Path, cluster: Cluster, tmp_path: Path
) -> None:
    with declared(tmp_path, app_values(pair_folder)):
        offer = applied(changed(pair_folder))
        args = {"config": str(tmp_path / "app.yaml")}
        applications = [
            {"name": name, "import_path": "deployments:app", "route_prefix": route, "args": args}
            for name, route in ((APP, "/"), ("second", "/second"))
        ]
        _get_global_client().deploy_apps(ServeDeploySchema.model_validate({"applications": applications}))
        try:
            until(lambda: bound_generation("second") and is_declared())
            kept, second = bound_generation(APP), bound_generation("second")
            assert kept is not None and kept.by_rollout and kept.offer == offer
            assert second is not None and not second.by_rollout
            assert second.offer.pools["cpu"].num_speculative_tokens == 7
        finally:
            serve.delete("second")


def test_a_wish_in_user_config_touches_no_replica_and_no_limit(
    pair_folder: Path, cluster: Cluster, tmp_path: Path
) -> None:
    values = app_values(pair_folder)
    values["limits"] = {"max_body": 2000}
    with declared(tmp_path, values) as deploy:
        before = replicas()
        for wrong in ("modle", "engin"):
            deploy(**file_with_wish({"desired": {"config": {wrong: {}}}}))
            told = f"desired configuration: refused {wrong}: unknown key"
            until(lambda told=told: told in _ingress_log(cluster, before))
            assert status_of(cluster.url, 3000) == 413 and replicas() == before
        offer = applied(changed(pair_folder))
        check_taken_in_place(before, cluster.url, offer)
        deploy(**file_with_wish({"desired": None}))
        check_taken_in_place(before, cluster.url, offer)


def two_pools(folder: Path) -> dict[str, Any]:
    values = app_values(folder)
    pool = values.pop("pool")
    values["pools"] = [pool, {**pool, "name": "second"}]
    return values


def test_a_pool_comes_and_goes_under_an_ingress_that_stays(
    pair_folder: Path, deployed: Callable[[AppConfig], Any]
) -> None:
    with deployed(AppConfig.model_validate(app_values(pair_folder))) as app:
        before = replicas()
        applied(two_pools(pair_folder))
        both = replicas()
        assert {name: both[name] for name in before} == before and len(both["second"]) == 1
        second = serve.get_deployment_handle("second", APP)

        def served_by_second() -> bool:
            assert status_of(app.url, 10) == 200
            return bool(second.stats.remote().result(timeout_s=20)["engine"]["generation_tokens"])

        until(served_by_second, seconds=20)
        applied(app_values(pair_folder))
        until(lambda: not replicas().get("second"))
        assert {name: replicas()[name] for name in before} == before
        for _ in range(20):
            assert status_of(app.url, 10) == 200


def test_what_only_a_new_replica_can_have_replaces_that_pool_alone_and_can_wait(
    pair_folder: Path, deployed: Callable[[AppConfig], Any]
) -> None:
    values = two_pools(pair_folder)
    with deployed(AppConfig.model_validate(values)) as app:
        before = replicas()
        values["pools"][0]["env"] = {"WHAT": "new"}
        values["pools"][1]["num_cpus"] = 0.2
        values["pools"].append({**values["pools"][1], "name": "third"})
        applied(values)
        assert replicas() == before, "nothing was named, and the third pool waits too"
        applied(values, restart={"cpu": "v2"})
        now = replicas()
        assert not now["cpu"] & before["cpu"] and now["second"] == before["second"]
        assert now["ingress"] == before["ingress"]
        assert bindings_of(APP)["second"].actor_options["num_cpus"] == 0.1
        assert bindings_of(APP)["cpu"].actor_options["runtime_env"]["env_vars"]["WHAT"] == "new"
        applied(values, restart=dict.fromkeys(("cpu", "second", "third"), "v2"))
        last = replicas()
        assert last["cpu"] == now["cpu"] and not last["second"] & before["second"] and len(last["third"]) == 1
        assert bindings_of(APP)["second"].actor_options["num_cpus"] == 0.2
        assert status_of(app.url, 10) == 200


def test_replicas_that_can_not_start_are_told_in_ray_serves_words(
    pair_folder: Path, deployed: Callable[[AppConfig], Any]
) -> None:
    values = app_values(pair_folder)
    with deployed(AppConfig.model_validate(values)):
        broken = two_pools(pair_folder)
        broken["pools"][1]["start_attempts"] = 1
        broken["pools"][1]["engine"] = {"vllm_args": {"no_such_option": 1}}
        offer = offered(broken)
        with pytest.raises(ApplyError, match=r"second: .*no_such_option"):
            apply(offer, {}, timeout_s=60)
        with pytest.raises(ApplyError, match="no app 'nowhere'"):
            apply(replace(offer, app="nowhere"), {})
