"""What names a generation, what its engines and its replicas' places depend on, and what it is deployed from."""

import json
import os
import pickle
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from deployments.builder import application_of, build
from deployments.config import AppConfig, EngineOptions, PoolConfig
from deployments.config_fields import Change, change_of
from deployments.config_places import sections
from deployments.fleet import plan_model
from deployments.generation import Problems, bound_models, config_of, offer_of
from hybrid_serve.facts.device import DeviceFacts
from hybrid_serve.rollout.wire import GenerationOffer, PoolOffer
from tests.demo_app import app_values
from tests.unit.facts_checkpoints import dflash, qwen3_5, safetensors, write_hub_cache

GIB = 2**30


def offered(values: dict[str, Any], **how: Any) -> GenerationOffer:
    offer = offer_of(AppConfig.model_validate(values), "app", **how)
    assert isinstance(offer, GenerationOffer), str(offer)
    return offer


def gpu_values(folder: Path) -> dict[str, Any]:
    """The demo pair on two pools of GPUs that are not here."""
    values = app_values(folder)
    del values["pool"]
    values["pools"] = [
        {"name": "a", "device": "cuda", "accelerator_type": "H200", "num_gpus": 2},
        {"name": "b", "device": "cuda", "accelerator_type": "H20"},
    ]
    return values


def changed(values: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """With one field of another value; `pool.x` is pool a's."""
    copy: dict[str, Any] = json.loads(json.dumps(values))
    section, field = path.split(".")
    here = copy["pools"][0] if section == "pool" else copy.setdefault(section, {})
    here[field] = value
    return copy


OTHER_VALUES: dict[str, Any] = {
    "model.name": "other",
    "engine.implementation": "vllm",
    "engine.policy": "stock",
    "engine.num_speculative_tokens": 5,
    "engine.max_model_len": 1024,
    "engine.max_num_batched_tokens": 1024,
    "engine.max_num_seqs": 8,
    "engine.prefix_caching": True,
    "engine.kv_dtype": "fp8",
    "engine.draft_kv_dtype": "fp8",
    "engine.mamba_ssm_cache_dtype": "bfloat16",
    "engine.tensor_parallel_size": 2,
    "engine.kv_memory": "2GiB",
    "engine.vllm_args": {"token_s": 0.5},
    "workload.contexts": [{"tokens": 128}],
    "workload.prefer": "speed",
    "pool.num_cpus": 3,
    "pool.num_gpus": 4,
    "pool.accelerator_type": "H20",
    "pool.label_selector": {"zone": "x"},
    "pool.resources": {"special": 1},
    "pool.env": {"A": "b"},
    "pool.image_uri": "registry/image:2",
    "pool.vllm": "0.26.0",
    "pool.tensor_parallel_size": 2,
    "pool.gpu_memory_utilization": 0.5,
    "pool.kv_memory": "2GiB",
    "pool.engine": {"max_num_seqs": 8},
    "pool.cost": 3.0,
    "pool.min_replicas": 0,
    "pool.max_replicas": 4,
    "pool.target_ongoing_requests": 3,
    "pool.max_ongoing_requests": 12,
    "pool.upscale_delay_s": 1,
    "pool.downscale_delay_s": 1,
    "pool.start_attempts": 3,
    "pool.graceful_shutdown_timeout_s": 1,
    "pool.health_check_period_s": 1,
    "pool.negotiation_timeout_s": 1,
    "limits.max_body": "1MiB",
    "limits.request_timeout_s": 1,
    "limits.max_queued_requests": 1,
    "limits.max_queue_s": 1,
    "limits.retries": 1,
    "routing.sticky_margin": 0.5,
    "routing.stats_period_s": 3,
    "scaling.utilisation": 0.7,
    "scaling.margin": 0.2,
    "scaling.start_patience_s": 5,
    "ingress.num_replicas": 2,
    "ingress.num_cpus": 1,
    "ingress.access_log": True,
    "ingress.max_ongoing_requests": 5,
}

ELSEWHERE = {
    "model.target", "model.target_revision", "model.drafter", "model.drafter_revision",  # their own tests below
    "engine.gpu_memory_utilization",  # not beside engine.kv_memory; the pool's is the same
    "pool.name",  # another pool
    "pool.device",  # its other values are other pools too: a CPU has no accelerator_type
}  # fmt: skip


def test_every_field_that_makes_a_generation_is_looked_at() -> None:
    known = {f"{section}.{field}" for section, kind in sections().items() for field in kind.model_fields}
    of_the_rollout = {name for name in known if name.startswith("rollout.")}
    assert known - of_the_rollout == OTHER_VALUES.keys() | ELSEWHERE


@pytest.mark.parametrize("path", OTHER_VALUES)
def test_digests_say_what_the_fields_declare(pair_folder: Path, path: str) -> None:
    """A cost that is declared too low would leave an engine or a replica on its old value."""
    values = gpu_values(pair_folder)
    before, after = offered(values), offered(changed(values, path, OTHER_VALUES[path]))
    section, field = path.split(".")
    cost: Change = change_of(sections()[section], field)
    a, b = before.pools["a"], after.pools["a"]
    assert before.digest != after.digest
    assert (a.placement_digest != b.placement_digest) == (cost == "replace" and section != "ingress")
    if cost == "live" or section == "ingress":
        assert a.engine_digest == b.engine_digest
    if cost == "replan":
        assert a.engine_digest != b.engine_digest
    if section == "pool" and path != "pool.accelerator_type":
        assert before.pools["b"].engine_digest == after.pools["b"].engine_digest, "another pool's business"
        assert before.pools["b"].placement_digest == after.pools["b"].placement_digest


def test_how_it_goes_out_is_no_part_of_what_it_is(pair_folder: Path) -> None:
    values = app_values(pair_folder)
    other = {**values, "rollout": {"bake_s": "1h", "gates": {"ttft_ratio": 9}}}
    assert offered(values).digest == offered(other).digest


def test_one_configuration_has_one_digest_in_whichever_form(pair_folder: Path) -> None:
    values = app_values(pair_folder)
    listed = {**values, "pools": [values["pool"]]}
    del listed["pool"]
    model = {name: values[name] for name in ("model", "engine", "workload", "pool")}
    spelled = {**values, "limits": {"retries": 2}, "engine": {**values["engine"], "kv_memory": str(GIB)}}
    assert len({offered(form).digest for form in (values, listed, {"models": [model]}, spelled)}) == 1
    two = gpu_values(pair_folder)
    assert offered(two).digest == offered({**two, "pools": two["pools"][::-1]}).digest, (
        "the order of pools is no matter"
    )


def test_a_pools_own_option_is_the_same_as_the_engines(pair_folder: Path) -> None:
    values = app_values(pair_folder)
    own = json.loads(json.dumps(values))
    own["pool"]["kv_memory"] = own["engine"].pop("kv_memory")
    own["pool"]["engine"] = {"max_num_seqs": own["engine"].pop("max_num_seqs")}
    assert offered(values).digest == offered(own).digest
    assert offered(values).pools["cpu"].engine_digest == offered(own).pools["cpu"].engine_digest


def test_digests_are_the_same_in_every_process(pair_folder: Path) -> None:
    values = gpu_values(pair_folder)
    program = (
        "import json, sys; from deployments.config import AppConfig; from deployments.generation import offer_of\n"
        "offer = offer_of(AppConfig.model_validate(json.load(sys.stdin)), 'another name')\n"
        "print(json.dumps([offer.digest, *[[p.engine_digest, p.placement_digest] for p in offer.pools.values()]]))\n"
    )
    told = []
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, "-c", program], input=json.dumps(values), env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        told.append(json.loads(done.stdout))
    offer = offered(values)
    here = [offer.digest, *[[pool.engine_digest, pool.placement_digest] for pool in offer.pools.values()]]
    assert told == [here, here]


def test_retrained_weights_are_another_generation_at_the_same_path(pair_folder: Path, tmp_path: Path) -> None:
    shutil.copytree(pair_folder, tmp_path / "pair")
    values = app_values(tmp_path / "pair")
    before = offered(values)
    (tmp_path / "pair" / "draft" / "model.safetensors").write_bytes(safetensors({"w": b"new!"}))
    after = offered(values)
    assert before.digest != after.digest
    assert before.pools["cpu"].engine_digest != after.pools["cpu"].engine_digest
    assert before.pools["cpu"].placement_digest == after.pools["cpu"].placement_digest


def test_an_offer_has_the_commits_that_were_read_and_loads_back_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits = ("a" * 40, "b" * 40)
    weights = safetensors({"w": bytes(4)})
    for repo, commit, config in zip(("org/target", "org/draft"), commits, (qwen3_5(), dflash()), strict=True):
        write_hub_cache(
            tmp_path, repo, commit, {"config.json": json.dumps(config).encode(), "model.safetensors": weights}
        )
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    model = {"target": "org/target", "drafter": "org/draft", "target_revision": "main"}
    pools = [{"name": "a", "accelerator_type": "H20"}, {"name": "b", "accelerator_type": "H200"}]
    offer = offered({"models": [{"model": model, "pools": pools}]})
    (told,) = offer.config["models"]
    assert (told["model"]["target_revision"], told["model"]["drafter_revision"]) == commits
    again = offered(json.loads(json.dumps(offer.config)))
    assert (again.digest, again.config) == (offer.digest, offer.config)


@pytest.mark.parametrize("values", [gpu_values, app_values], ids=lambda made: made.__name__)
def test_the_configuration_in_an_offer_loads_back_equal(pair_folder: Path, values: Any) -> None:
    config = AppConfig.model_validate({**values(pair_folder), "rollout": {"bake_s": "90s"}})
    offer = offer_of(config, "app")
    assert isinstance(offer, GenerationOffer)
    assert AppConfig.model_validate(json.loads(json.dumps(offer.config))) == config == config_of(offer)


def test_every_replica_knows_its_generation_and_that_changes_no_digest(pair_folder: Path) -> None:
    offer = offered(gpu_values(pair_folder))
    assert {pool.config.generation for pool in offer.pools.values()} == {offer.digest}
    renamed = {name: replace(pool, config=replace(pool.config, generation="x")) for name, pool in offer.pools.items()}
    assert bound_models(replace(offer, pools=renamed))[0].pools[0].decision == bound_models(offer)[0].pools[0].decision


def test_an_offer_is_deployed_as_it_was_planned_though_files_and_devices_are_gone(
    pair_folder: Path, tmp_path: Path
) -> None:
    shutil.copytree(pair_folder, tmp_path / "pair")
    values = gpu_values(tmp_path / "pair")
    config = AppConfig.model_validate(values)
    (model,) = (plan_model(served) for served in config.served)
    offer = pickle.loads(pickle.dumps(offered(values)))
    shutil.rmtree(tmp_path / "pair")
    (bound,) = bound_models(offer)
    for planned, found in zip(model.pools, bound.pools, strict=True):
        assert (planned.decision, planned.inputs, planned.sizing) == (found.decision, found.inputs, found.sizing)
    assert application_of(offer)._bound_deployment.name == "ingress"


def test_the_figures_of_a_pool_are_its_plans(pair_folder: Path) -> None:
    (model,) = (plan_model(served) for served in AppConfig.model_validate(gpu_values(pair_folder)).served)
    pool = offered(gpu_values(pair_folder)).pools["a"]
    plan = model.pools[0].decision.plan
    assert plan is not None
    assert (pool.plan_id, pool.kv_tokens, pool.num_speculative_tokens) == (plan.plan_id, plan.kv_tokens, 7)
    assert pool.concurrency is not None and pool.concurrency > 1


def test_what_replicas_measured_counts_over_the_catalogue(pair_folder: Path) -> None:
    values = gpu_values(pair_folder)
    del values["engine"]["kv_memory"]
    measured = DeviceFacts(kind="cuda", name="NVIDIA H200", memory_bytes=20 * GIB, sm=90)
    plain, with_less = offered(values), offered(values, measured={"a": measured})
    assert _tokens(with_less.pools["a"]) < _tokens(plain.pools["a"])
    assert with_less.pools["b"] == replace(plain.pools["b"], config=with_less.pools["b"].config)
    assert with_less.digest == plain.digest, "the same configuration"
    assert with_less.pools["a"].engine_digest == plain.pools["a"].engine_digest


def test_what_replicas_of_another_kind_measured_does_not_count(pair_folder: Path) -> None:
    values = gpu_values(pair_folder)
    del values["engine"]["kv_memory"]
    for measured in (
        DeviceFacts(kind="cpu", name="cpu", memory_bytes=GIB),
        DeviceFacts(kind="cuda", name="NVIDIA L40S", memory_bytes=20 * GIB, sm=89),
    ):
        assert offered(values, measured={"a": measured}).pools["a"].kv_tokens == offered(values).pools["a"].kv_tokens


def _tokens(pool: PoolOffer) -> int:
    assert pool.kv_tokens is not None
    return pool.kv_tokens


def test_all_that_keeps_a_configuration_from_being_deployed_is_told_at_once(pair_folder: Path) -> None:
    values = gpu_values(pair_folder)
    values["pools"][0]["kv_memory"] = "1MiB"
    values["pools"][1]["accelerator_type"] = "H2O"
    problems = offer_of(AppConfig.model_validate(values), "app")
    assert isinstance(problems, Problems)
    assert str(problems).startswith("2 problems:") and "pool a:" in str(problems) and "'H2O'" in str(problems)
    assert {(one["model"], *one["pools"]) for one in problems.to_json()} == {("demo", "a"), ("demo", "b")}
    assert all(one["reason"] and one["remedy"] for one in problems.to_json())


def test_replicas_are_placed_with_the_digest_of_their_place(pair_folder: Path) -> None:
    values = gpu_values(pair_folder)
    variables = [
        _deployments(form)["a"].ray_actor_options["runtime_env"]["env_vars"]["HYBRID_SERVE_PLACEMENT"]
        for form in (values, changed(values, "pool.cost", 3.0), changed(values, "pool.vllm", "0.26.0"))
    ]
    assert variables[0] == variables[1] != variables[2]


def test_ray_serve_sees_each_generation_as_other_options(pair_folder: Path) -> None:
    """It would not look at a replica's arguments alone."""
    values = gpu_values(pair_folder)
    for name in ("a", "ingress"):
        one, other = (
            _deployments(form)[name]._deployment_config for form in (values, changed(values, "engine.max_num_seqs", 8))
        )
        assert one != other and one.user_config == other.user_config


def _deployments(values: dict[str, Any]) -> dict[str, Any]:
    app = build(AppConfig.model_validate(values))
    pools = [
        pool._bound_deployment for service in app._bound_deployment.init_args[0].values() for pool in service.values()
    ]
    return {one.name: one for one in (app._bound_deployment, *pools)}


def test_a_pools_engine_options_cost_what_they_cost_in_the_engine_section() -> None:
    assert change_of(PoolConfig, "tensor_parallel_size") == change_of(EngineOptions, "tensor_parallel_size")
    assert change_of(PoolConfig, "kv_memory") == change_of(EngineOptions, "kv_memory")
