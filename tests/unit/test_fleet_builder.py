"""Several pools and models: what they are deployed as, what they agree on, what is refused. No Ray is started."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ray.runtime_env import RuntimeEnv
from ray.serve import Application

from deployments.builder import build
from deployments.config import AppConfig, ReplicaConfig
from deployments.deployment_options import ACCELERATOR_LABEL, actor_options, label_selector
from deployments.errors import AppError
from deployments.fleet import PlannedModel, plan_model
from deployments.pool_config import PoolConfig
from hybrid_serve.negotiation.agreement import agree
from hybrid_serve.plan.decide import decide
from tests.demo_app import app_values
from tests.unit.facts_checkpoints import dflash, qwen3_5, safetensors, write_hub_cache
from tests.unit.gpu_fleet import gpu_fleet, pool_named

MEMORY = {"h20": "96MiB", "h200": "144MiB", "l40s": "48MiB"}


def demo_fleet(folder: Path, memory: dict[str, str] = MEMORY, **engine: Any) -> dict[str, Any]:
    """Three CPU pools of unlike memory, labelled as GPUs."""
    values = app_values(folder, **engine)
    del values["pool"], values["engine"]["kv_memory"]
    values["pools"] = [
        {
            "name": name,
            "device": "cpu",
            "num_cpus": 0.1,
            "kv_memory": size,
            "label_selector": {ACCELERATOR_LABEL: name.upper()},
        }
        for name, size in memory.items()
    ]
    return values


def planned(values: dict[str, Any]) -> PlannedModel:
    (served,) = AppConfig.model_validate(values).served
    return plan_model(served)


def services(app: Application) -> dict[str, dict[str, Application]]:
    found: dict[str, dict[str, Application]] = app._bound_deployment.init_args[0]
    return found


def refusal(values: dict[str, Any]) -> str:
    with pytest.raises(AppError) as caught:
        build(AppConfig.model_validate(values))
    return str(caught.value)


def test_there_is_one_deployment_a_pool_and_one_ingress(pair_folder: Path) -> None:
    app = build(AppConfig.model_validate(demo_fleet(pair_folder)))
    assert app._bound_deployment.name == "ingress"
    pools = services(app)["demo"]
    assert list(pools) == ["h20", "h200", "l40s"]
    for name, pool in pools.items():
        deployment = pool._bound_deployment
        assert deployment.name == name
        assert deployment.ray_actor_options["label_selector"] == {ACCELERATOR_LABEL: name.upper()}
        (config,) = deployment.init_args
        assert isinstance(config, ReplicaConfig) and config.pool.name == name
        assert [declared.name for declared in config.fleet.pools] == ["h20", "h200", "l40s"]


def test_every_replica_is_bound_with_the_same_fleet_and_its_own_memory(pair_folder: Path) -> None:
    model = planned(demo_fleet(pair_folder))
    assert len({pool.config.fleet.generation for pool in model.pools}) == 1
    assert len({pool.inputs.settings.max_model_len for pool in model.pools}) == 1
    blocks = {pool.name: pool.decision.plan.num_blocks for pool in model.pools}
    assert blocks["l40s"] < blocks["h20"] < blocks["h200"]
    sizes = {pool.name: pool.sizing.concurrency for pool in model.pools}
    assert sizes["l40s"] < sizes["h20"] <= sizes["h200"]


def test_the_fleets_minimum_is_what_the_smallest_pool_holds(pair_folder: Path) -> None:
    values = demo_fleet(pair_folder, MEMORY | {"l40s": "9MiB"}, max_model_len="fleet")
    model = planned(values)
    assert model.problems == () and model.agreement is not None
    longest = model.agreement.max_model_len
    assert 512 < longest < 4096
    assert {pool.config.engine.max_model_len for pool in model.pools} == {longest}
    for pool in model.pools:
        assert pool.decision.plan is not None and pool.decision.plan.max_model_len == longest
    values["engine"]["max_model_len"] = longest + 1
    assert "pool l40s: one request of" in refusal(values)


def test_a_fleet_with_room_agrees_on_the_models_own_limit(pair_folder: Path) -> None:
    model = planned(demo_fleet(pair_folder, max_model_len="fleet"))
    assert model.agreement is not None and model.agreement.max_model_len == 4096


def test_a_workload_longer_than_the_fleets_minimum_is_refused_by_the_pool_that_is_too_small(pair_folder: Path) -> None:
    values = demo_fleet(pair_folder, MEMORY | {"l40s": "9MiB"}, max_model_len="fleet")
    values["workload"] = {"contexts": [{"tokens": 4000}]}
    text = refusal(values)
    assert "pool l40s: the workload has contexts of 4,000 tokens, and the fleet agrees on max_model_len " in text
    assert "h20" not in text


def test_all_problems_of_all_pools_are_told_at_once_with_their_names(pair_folder: Path) -> None:
    values = demo_fleet(pair_folder, MEMORY | {"l40s": "1MiB", "tiny": "2MiB"})
    values["pools"] += [
        {"name": "unknown", "accelerator_type": "H2O"},
        {"name": "old", "device": "cpu", "kv_memory": "1GiB", "vllm": "0.19.0"},
        {"name": "k", "device": "cpu", "kv_memory": "1GiB", "engine": {"num_speculative_tokens": 9}},
    ]
    text = refusal(values)
    for expected in (
        "5 problems",
        "pool l40s: one request of 2,048 tokens needs",
        "pool tiny: one request of 2,048 tokens needs",
        "pool unknown: GPU 'H2O' is not in the catalogue: known are H20",
        "pool old: vLLM 0.19.0 is not supported: supported are 0.20.1 to",
        "pool k: num_speculative_tokens is 9",
        "what to change: Set num_speculative_tokens to 7 or less",
    ):
        assert expected in text, text
    assert "pool h20" not in text and "pool h200" not in text


def test_what_is_wrong_with_the_pair_is_told_once_for_all_pools(pair_folder: Path) -> None:
    values = demo_fleet(pair_folder)
    values["model"]["target"] = values["model"]["drafter"]
    text = refusal(values)
    assert text.count("is a drafter, given as target") == 1 and "pools h20, h200, l40s: " in text


def test_several_models_are_told_apart_and_served_by_one_ingress(pair_folder: Path) -> None:
    one = demo_fleet(pair_folder)
    other = app_values(pair_folder)
    other["model"]["name"] = "other"
    values = {"models": [one, other]}
    found = services(build(AppConfig.model_validate(values)))
    assert {name: list(pools) for name, pools in found.items()} == {"demo": ["h20", "h200", "l40s"], "other": ["cpu"]}
    other["pool"]["kv_memory"] = one["pools"][0]["kv_memory"] = "1MiB"
    text = refusal(values)
    assert "model demo, pool h20: one request of" in text and "model other, pool cpu: one request of" in text


def test_a_fleet_of_unlike_gpus_agrees_on_length_and_prefix_hashes(tmp_path: Path) -> None:
    model = planned(gpu_fleet(tmp_path))
    assert model.problems == () and model.agreement is not None
    assert model.agreement.prefix_match_unit and model.agreement.max_model_len > 65536
    plans = {pool.name: pool.decision.plan for pool in model.pools}
    assert plans["h200"].kv_memory_bytes > plans["h20"].kv_memory_bytes
    for pool in model.pools:
        plan = pool.decision.plan
        assert plan.max_model_len == model.agreement.max_model_len
        assert all(group.block_size % model.agreement.prefix_match_unit == 0 for group in plan.groups)
        assert agree(pool.config.fleet) == model.agreement
        assert decide(pool.inputs, "best") == pool.decision


def test_replicas_are_bound_with_the_commits_that_the_app_was_planned_on(tmp_path: Path) -> None:
    """In a process of its own: the hub client reads where its cache is when it is imported."""
    commits = ("a" * 40, "b" * 40)
    weights = safetensors({"w": bytes(4)})
    for repo, commit, config in zip(("org/target", "org/draft"), commits, (qwen3_5(), dflash()), strict=True):
        files = {"config.json": json.dumps(config).encode(), "model.safetensors": weights}
        write_hub_cache(tmp_path, repo, commit, files)
    program = (
        "from deployments.config import AppConfig; from deployments.fleet import plan_model\n"
        "model = {'target': 'org/target', 'drafter': 'org/draft', 'target_revision': 'main'}\n"
        "pools = [{'name': 'a', 'accelerator_type': 'H20'}, {'name': 'b', 'accelerator_type': 'H200'}]\n"
        "(served,) = AppConfig.model_validate({'model': model, 'pools': pools}).served\n"
        "for pool in plan_model(served).pools:\n"
        "    print(pool.config.model.target_revision, pool.config.model.drafter_revision)\n"
    )
    environment = {**os.environ, "HF_HUB_CACHE": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == [" ".join(commits)] * 2, done.stderr


def test_tensor_parallel_replicas_hold_their_gpus_in_one_actor(tmp_path: Path) -> None:
    found = services(build(AppConfig.model_validate(gpu_fleet(tmp_path))))["qwen3.5-35b-a3b"]
    options = {name: pool._bound_deployment.ray_actor_options for name, pool in found.items()}
    assert {name: option["num_gpus"] for name, option in options.items()} == {"h20": 1, "h200": 1, "l40s": 4}
    for name, pool in found.items():
        assert options[name]["label_selector"] == {ACCELERATOR_LABEL: name.upper()}
        assert pool._bound_deployment._replica_config.placement_group_bundles is None


def test_a_gpu_that_the_weights_do_not_fit_on_is_refused_with_the_numbers(tmp_path: Path) -> None:
    values = gpu_fleet(tmp_path)
    pool_named(values, "l40s")["tensor_parallel_size"] = 1
    text = refusal(values)
    assert "pool l40s: Nothing is left for the KV cache on NVIDIA L40S" in text and "Raise tensor_parallel_size" in text


def test_each_pool_is_planned_for_its_own_vllm(tmp_path: Path) -> None:
    values = gpu_fleet(tmp_path)
    values["engine"]["prefix_caching"] = False
    pool_named(values, "h20")["vllm"] = "0.26.0"
    model = planned(values)
    assert model.problems == ()
    plans = {pool.name: pool.decision.plan for pool in model.pools}
    assert (plans["h20"].vllm, plans["h20"].pages) == ("0.26.0", "uniform")
    assert (plans["h200"].vllm, plans["h200"].pages) == ("0.29.0", "packed")


@pytest.mark.parametrize(("gpus", "fits"), [(None, True), (4, True), (1, False)])
def test_a_replica_with_fewer_gpus_than_its_tensor_parallel_size_is_refused(
    tmp_path: Path, gpus: float | None, fits: bool
) -> None:
    values = gpu_fleet(tmp_path)
    pool_named(values, "l40s")["num_gpus"] = gpus
    if fits:
        assert planned(values).problems == ()
    else:
        assert "pool l40s: num_gpus is 1, and tensor_parallel_size 4 needs 4 GPUs for each replica" in refusal(values)


def test_two_replicas_may_share_a_gpu() -> None:
    pool = PoolConfig(device="cuda", num_gpus=0.5, gpu_memory_utilization=0.4)
    assert actor_options(pool, 1)["num_gpus"] == 0.5


@pytest.mark.parametrize(
    ("accelerator", "label"),
    [
        ("H20", "H20"), ("H20-3e", "H20"), ("H200", "H200"), ("L40S", "L40S"), ("RTX PRO 6000", "RTX-PRO-6000"),
        ("RTX-PRO-6000", "RTX-PRO-6000"), ("A100-80G", "A100"),
    ],
)  # fmt: skip
def test_a_gpu_kind_is_placed_by_the_label_that_ray_gives_it(accelerator: str, label: str) -> None:
    assert label_selector(PoolConfig(accelerator_type=accelerator)) == {ACCELERATOR_LABEL: label}


def test_a_pools_own_labels_win_over_the_accelerators() -> None:
    pool = PoolConfig(accelerator_type="H20-3e", label_selector={ACCELERATOR_LABEL: "H20-141", "zone": "in(a, b)"})
    assert label_selector(pool) == {ACCELERATOR_LABEL: "H20-141", "zone": "in(a, b)"}


def test_a_label_that_ray_does_not_take_is_a_mistake() -> None:
    with pytest.raises(ValueError, match=r"[Ii]nvalid label selector"):
        PoolConfig(label_selector={ACCELERATOR_LABEL: "H20, H200"})


def test_replicas_run_in_the_image_that_their_pool_names() -> None:
    options = actor_options(PoolConfig(image_uri="registry/vllm:0.26", env={"A": "b"}), 1)
    environment = RuntimeEnv(**options["runtime_env"])
    assert environment.image_uri() == "registry/vllm:0.26" and environment.env_vars()["A"] == "b"
