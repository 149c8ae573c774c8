"""deploy/kuberay/ is what Kubernetes, KubeRay and Ray take, and brings what the pools of the fleet ask for."""

import copy
from collections.abc import Callable, Iterator
from importlib.metadata import requires
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import ray
import yaml
from ray.autoscaler._private.kuberay.autoscaling_config import _derive_autoscaling_config_from_ray_cr

from deployments.loading import load_config
from hybrid_serve.facts.catalogue import gpu
from tests.autoscaler import LABEL, launcher_config, pools_of, started_for
from tests.kuberay import RAY_SERVICE

ROOT = Path(__file__).parents[2]
KUBERAY = ROOT / "deploy" / "kuberay"
POOLS = pools_of(load_config(ROOT / "configs" / "fleet.yaml"))
KUBERNETES = "1.34"
"""Any of the last years would do: nothing here is new."""

Values = dict[str, Any]
Mistakes = dict[str, Callable[[Values], object]]


def objects() -> list[Values]:
    """Everything that `kubectl apply -f deploy/kuberay/` would apply."""
    return [found for file in sorted(KUBERAY.glob("*.yaml")) for found in yaml.safe_load_all(file.read_text())]


@pytest.fixture
def service() -> Values:
    (found,) = [found for found in objects() if found["kind"] == "RayService"]
    # Without the file's anchors: a test that changes one place changes one place.
    return copy.deepcopy(yaml.safe_load(yaml.dump(found, Dumper=_Plain)))


class _Plain(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def groups_of(service: Values) -> dict[str, Values]:
    """Worker groups by name."""
    return {group["groupName"]: group for group in service["spec"]["rayClusterConfig"]["workerGroupSpecs"]}


def check(found: Values) -> None:
    """By Kubernetes' schemas, or for a RayService by ours and each pod template by Kubernetes'."""
    if found["kind"] != "RayService":
        kubernetes_validate.validate(found, KUBERNETES, strict=True)
        return
    jsonschema.Draft202012Validator(RAY_SERVICE).validate(found)
    cluster = found["spec"]["rayClusterConfig"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        template = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "x"}, "template": group["template"]}
        kubernetes_validate.validate(template, KUBERNETES, strict=True)


def test_every_object_is_valid() -> None:
    found = objects()
    assert {each["kind"] for each in found} == {"RayService", "Service", "StatefulSet", "PersistentVolumeClaim"}
    for each in found:
        check(each)


def cluster_of(service: Values) -> Values:
    return service["spec"]["rayClusterConfig"]  # type: ignore[no-any-return]


def pod_of(service: Values, group: str) -> Values:
    return groups_of(service)[group]["template"]["spec"]  # type: ignore[no-any-return]


RAY_SERVICE_MISTAKES: Mistakes = {
    "an unknown version of the API": lambda s: s.update(apiVersion="ray.io/v2"),
    "a misspelt field": lambda s: s["spec"].update(serveConfig=s["spec"].pop("serveConfigV2")),
    "the serve configuration as a mapping": lambda s: s["spec"].update(serveConfigV2={"applications": []}),
    "a strategy that does not exist": lambda s: s["spec"].update(upgradeStrategy={"type": "Rolling"}),
    "no head": lambda s: cluster_of(s).pop("headGroupSpec"),
    "a misspelt field of a worker group": lambda s: groups_of(s)["h20"].update(maxReplica=1),
    "a worker group without a bound": lambda s: groups_of(s)["h20"].pop("maxReplicas"),
    "a count as text": lambda s: groups_of(s)["h20"].update(replicas="1"),
    "a start parameter that is no text": lambda s: groups_of(s)["h20"]["rayStartParams"].update({"num-gpus": 8}),
    "labels as a start parameter": lambda s: groups_of(s)["h20"]["rayStartParams"].update(labels=f"{LABEL}=H20"),
    "a way of authentication that does not exist": lambda s: cluster_of(s)["authOptions"].update(mode="password"),
    "a Redis without an address": lambda s: cluster_of(s)["gcsFaultToleranceOptions"].pop("redisAddress"),
}

POD_MISTAKES: Mistakes = {
    "a misspelt field of a pod": lambda s: pod_of(s, "h20").update(nodeSelectors={}),
    "a selector that is no text": lambda s: pod_of(s, "h20").update(nodeSelector={"gpu": True}),
    "a toleration as text": lambda s: pod_of(s, "h20").update(tolerations=["nvidia.com/gpu"]),
    "a misspelt field of a probe": lambda s: pod_of(s, "h20")["containers"][0]["livenessProbe"].update(periodSecond=5),
    "a container without a name": lambda s: pod_of(s, "h20")["containers"][0].pop("name"),
    "a misspelt kind of volume": lambda s: pod_of(s, "h20")["volumes"].append({"name": "x", "emptydir": {}}),
    "a secret's key left out": lambda s: pod_of(s, "h20")["containers"][0]["env"].append(
        {"name": "X", "valueFrom": {"secretKeyRef": {"name": "huggingface"}}}
    ),
}


@pytest.mark.parametrize("mistake", RAY_SERVICE_MISTAKES)
def test_the_schema_of_ray_service_refuses(mistake: str, service: Values) -> None:
    RAY_SERVICE_MISTAKES[mistake](service)
    with pytest.raises(jsonschema.ValidationError):
        check(service)


@pytest.mark.parametrize("mistake", POD_MISTAKES)
def test_kubernetes_own_schema_refuses(mistake: str, service: Values) -> None:
    POD_MISTAKES[mistake](service)
    with pytest.raises(kubernetes_validate.ValidationError):
        check(service)


@pytest.mark.parametrize("kind", ["Service", "StatefulSet", "PersistentVolumeClaim"])
def test_kubernetes_own_schema_refuses_a_misspelt_field_of(kind: str) -> None:
    (found,) = [found for found in objects() if found["kind"] == kind]
    found["spec"]["replica"] = 1
    with pytest.raises(kubernetes_validate.ValidationError):
        check(found)


def test_what_is_referred_to_exists_or_is_made_by_a_command_of_the_readme(service: Values) -> None:
    readme = (KUBERAY / "README.md").read_text()
    made = {(each["kind"], each["metadata"]["name"]) for each in objects()}
    secrets, claims = set(), set()
    for node in _walk(objects()):
        if "secretKeyRef" in node:
            secrets.add((node["secretKeyRef"]["name"], node["secretKeyRef"]["key"]))
        if "persistentVolumeClaim" in node:
            claims.add(node["persistentVolumeClaim"]["claimName"])
    assert len(secrets) == 2 and len(claims) == 1
    assert all(f"kubectl create secret generic {name} --from-literal={key}=" in readme for name, key in secrets)
    assert all(("PersistentVolumeClaim", name) in made for name in claims)
    host, _, port = cluster_of(service)["gcsFaultToleranceOptions"]["redisAddress"].partition(":")
    (redis,) = [each for each in objects() if each["kind"] == "Service"]
    assert redis["metadata"]["name"] == host and redis["spec"]["ports"][0]["port"] == int(port)


def _walk(node: Any) -> Iterator[Values]:
    """All mappings, at every depth."""
    if isinstance(node, dict):
        yield node
    children = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    for child in children:
        yield from _walk(child)


def autoscaling(service: Values) -> Values:
    """What Ray's autoscaler in the head's pod makes of the RayCluster that KubeRay makes of ours."""
    raycluster = {"metadata": {"name": "x", "namespace": "default"}, "spec": cluster_of(service)}
    return _derive_autoscaling_config_from_ray_cr(raycluster)  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", POOLS)
def test_a_pool_at_its_largest_starts_pods_of_its_own_group_and_fits(name: str, service: Values) -> None:
    pool, replica = POOLS[name]
    config = autoscaling(service)
    for kind in config["available_node_types"].values():
        kind["min_workers"] = 0
    started = started_for(launcher_config(config), replica, pool.accelerator_type, pool.max_replicas)
    assert started.nodes.keys() == {name} and started.waiting == 0


def test_without_its_label_a_group_is_not_started(service: Values) -> None:
    pool, replica = POOLS["h20"]
    del groups_of(service)["h20"]["labels"]
    started = started_for(launcher_config(autoscaling(service)), replica, pool.accelerator_type, 1)
    assert started.waiting == 1


def test_a_quantity_that_is_none_is_refused(service: Values) -> None:
    """Kubernetes' schemas call every text a quantity."""
    pod_of(service, "h20")["containers"][0]["resources"]["limits"]["memory"] = "512 GB"
    with pytest.raises(ValueError):
        autoscaling(service)


@pytest.mark.parametrize("name", POOLS)
def test_a_group_is_placed_on_the_nodes_with_the_cards_of_its_pool(name: str, service: Values) -> None:
    pool, _ = POOLS[name]
    card = gpu(pool.accelerator_type or "")
    assert groups_of(service)[name]["labels"] == {LABEL: pool.accelerator_type}
    # GPU feature discovery writes the driver's name with dashes.
    assert pod_of(service, name)["nodeSelector"] == {"nvidia.com/gpu.product": card.name.replace(" ", "-")}


def test_a_group_keeps_the_pods_that_its_pool_always_needs(service: Values) -> None:
    """And there is one: requests enter on workers, the head is out of the service."""
    groups = groups_of(service)
    for name, (pool, replica) in POOLS.items():
        gpus = int(pod_of(service, name)["containers"][0]["resources"]["limits"]["nvidia.com/gpu"])
        assert groups[name]["minReplicas"] * gpus >= pool.min_replicas * replica["GPU"]
        assert groups[name]["minReplicas"] <= groups[name]["replicas"] <= groups[name]["maxReplicas"]
    assert any(pool.min_replicas for pool, _ in POOLS.values())


def test_a_pod_outlives_the_quiet_between_two_peaks(service: Values) -> None:
    idle = cluster_of(service)["autoscalerOptions"]["idleTimeoutSeconds"]
    assert idle > max(pool.downscale_delay_s for pool, _ in POOLS.values())


def test_versions_are_those_of_the_project(service: Values) -> None:
    dockerfile = (KUBERAY / "Dockerfile").read_text()
    (vllm,) = [each.split(";")[0].strip() for each in requires("hybrid-serve") or () if each.startswith("vllm==")]
    assert cluster_of(service)["rayVersion"] == ray.__version__
    assert f"'ray[serve]=={ray.__version__}'" in dockerfile and f"'{vllm}'" in dockerfile
