"""Configurations of several pools and several models: what they mean, how they are overridden, what is refused."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from deployments.config import AppConfig
from deployments.errors import AppError
from deployments.loading import load_config

GIB = 2**30


def three_pools() -> dict[str, Any]:
    return {
        "engine": {"max_model_len": 4096, "gpu_memory_utilization": 0.9, "vllm_args": {"enforce_eager": True}},
        "pools": [
            {"name": "h20", "accelerator_type": "H20", "kv_memory": "20GiB", "cost": 0.5},
            {"name": "h200", "accelerator_type": "H200", "tensor_parallel_size": 2, "max_replicas": 4},
            {"name": "l40s.v1", "vllm": "0.26.0", "engine": {"max_num_seqs": "16", "vllm_args": {"seed": 1}}},
        ],
    }


def two_models() -> dict[str, Any]:
    return {
        "models": [
            {"model": {"name": "a-1.5"}, "pool": {"name": "a"}},
            {"model": {"name": "b"}, "pools": [{"name": "b1"}, {"name": "b2"}]},
        ]
    }


def loaded(folder: Path, values: dict[str, Any], overrides: dict[str, Any] | None = None) -> AppConfig:
    file = folder / "app.yaml"
    file.write_text(yaml.safe_dump(values))
    return load_config(file, overrides)


def mistakes(folder: Path, values: dict[str, Any], overrides: dict[str, Any] | None = None) -> str:
    with pytest.raises(AppError) as caught:
        loaded(folder, values, overrides)
    return str(caught.value)


def test_one_pool_is_a_model_of_one_pool() -> None:
    (served,) = AppConfig.model_validate({"pool": {"name": "cpu"}}).served
    assert [pool.name for pool in served.pools] == ["cpu"] and served.pool is None and served.name == "demo"
    (bare,) = AppConfig().served
    assert [pool.name for pool in bare.pools] == ["default"]


def test_a_pools_own_engine_options_are_over_the_models(tmp_path: Path) -> None:
    (served,) = loaded(tmp_path, three_pools()).served
    h20, h200, l40s = served.served_pools
    assert (h20.engine.kv_memory, h20.engine.gpu_memory_utilization) == (20 * GIB, None)
    assert (h200.engine.kv_memory, h200.engine.gpu_memory_utilization) == (None, 0.9)
    assert (h20.engine.tensor_parallel_size, h200.engine.tensor_parallel_size) == (1, 2)
    assert (l40s.engine.max_num_seqs, h20.engine.max_num_seqs) == (16, 256)
    assert l40s.engine.vllm_args == {"enforce_eager": True, "seed": 1}
    assert {pool.engine.max_model_len for pool in served.served_pools} == {4096}
    assert (h20.pool.release, l40s.pool.release) == ("0.29.0", "0.26.0")
    assert (h20.pool.cost, h200.pool.cost) == (0.5, 1.0)


def test_several_models_have_pools_of_their_own(tmp_path: Path) -> None:
    config = loaded(tmp_path, two_models())
    assert [(served.name, [pool.name for pool in served.pools]) for served in config.served] == [
        ("a-1.5", ["a"]),
        ("b", ["b1", "b2"]),
    ]
    assert config.model is None and config.pool is None


def test_a_configuration_travels_to_replicas_as_it_is(tmp_path: Path) -> None:
    import pickle

    config = loaded(tmp_path, three_pools())
    assert pickle.loads(pickle.dumps(config.served)) == config.served


def test_the_longest_request_may_be_what_the_fleet_holds(tmp_path: Path) -> None:
    (served,) = loaded(tmp_path, {"engine": {"max_model_len": "fleet"}}).served
    assert served.engine.max_model_len == "fleet"
    text = mistakes(tmp_path, {"engine": {"max_model_len": "flete"}}, {"policy": "bset"})
    assert "engine.max_model_len: 'flete' is no length: give tokens, 1 or more, or `fleet`" in text
    assert "2 mistakes" in text
    for wrong in (0, -1, 1.5, True):
        assert "engine.max_model_len" in mistakes(tmp_path, {"engine": {"max_model_len": wrong}})


def test_pools_and_models_are_overridden_by_their_names(tmp_path: Path) -> None:
    (served,) = loaded(
        tmp_path,
        three_pools(),
        {"pools.h200.max_replicas": "8", "pools.l40s.v1.engine.max_num_seqs": "32", "pools.h20": {"cost": "3"}},
    ).served
    h20, h200, l40s = served.served_pools
    assert (h20.pool.cost, h200.pool.max_replicas, l40s.engine.max_num_seqs) == (3.0, 8, 32)
    a, b = loaded(
        tmp_path,
        two_models(),
        {"models.a-1.5.engine.max_model_len": "100", "models.b.pools.b2.min_replicas": "0", "pools.b1.cost": "2"},
    ).served
    assert (a.engine.max_model_len, b.engine.max_model_len) == (100, 8192)
    assert [(pool.min_replicas, pool.cost) for pool in b.pools] == [(1, 2.0), (0, 1.0)]


def test_pool_is_the_one_pool_by_whichever_form(tmp_path: Path) -> None:
    one = {"pools": [{"name": "only"}]}
    for overrides in ({"pool.max_replicas": "3"}, {"max_replicas": "3"}, {"pools.only.max_replicas": "3"}):
        (served,) = loaded(tmp_path, one, overrides).served
        assert [(pool.name, pool.max_replicas) for pool in served.pools] == [("only", 3)]
    (served,) = loaded(tmp_path, {"pool": {"name": "cpu"}}, {"pools.cpu.max_replicas": "3"}).served
    assert served.pools[0].max_replicas == 3


def test_an_override_that_several_pools_or_models_have_must_name_one(tmp_path: Path) -> None:
    text = mistakes(tmp_path, three_pools(), {"pool.max_replicas": 3, "min_replicas": 1, "pools.h2000.cost": 2})
    assert "pool.max_replicas: there are 3 pools, write pools.h20.max_replicas or pools.h200.max_replicas or" in text
    assert "min_replicas: there are 3 pools" in text
    assert "pools.h2000.cost: there is no such pool; did you mean h200" in text
    text = mistakes(tmp_path, two_models(), {"engine.max_model_len": 5, "models.c.engine.policy": "stock"})
    assert "there are 2 models, write models.a-1.5.engine.max_model_len or models.b.engine.max_model_len" in text
    assert "models.c.engine.policy: there is no such model" in text


def test_a_pools_memory_does_not_make_the_engines_ambiguous(tmp_path: Path) -> None:
    config = loaded(tmp_path, {}, {"kv_memory": "2GiB", "tensor_parallel_size": "2"})
    assert config.engine is not None and config.pool is not None
    assert (config.engine.kv_memory, config.engine.tensor_parallel_size) == (2 * GIB, 2)
    assert config.pool.kv_memory is None


def test_mistakes_of_all_pools_are_told_at_once_by_their_names(tmp_path: Path) -> None:
    values = three_pools()
    h20, h200, l40s = values["pools"]
    h20.update(engine={"kv_memroy": 1, "max_num_seqs": 0}, minreplicas=2)
    h200.update(min_replicas=9, gpu_memory_utilization=0.5, kv_memory="lots")
    l40s.update(device="cpu", num_gpus=1, engine={"max_model_len": 5, "policy": "stock"})
    text = mistakes(tmp_path, values)
    for expected in (
        "pools.h20.engine.kv_memroy: unknown key; did you mean kv_memory",
        "pools.h20.engine.max_num_seqs: input should be greater than or equal to 1",
        "pools.h20.minreplicas: unknown key; did you mean min_replicas",
        "pools.h200.kv_memory: 'lots' is not a size",
        "pools.h200.max_replicas: below min_replicas, which is 9",
        "pools.l40s.v1.num_gpus: the pool's device is cpu",
        "pools.l40s.v1.engine: all pools of a model share policy, max_model_len: set it in the model's engine section",
    ):
        assert expected in text, text
    assert "7 mistakes" in text


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"pool": {}, "pools": [{"name": "a"}]}, "pools: pool is the short form for one pool"),
        ({"pools": [{"name": "a"}, {"name": "a"}]}, "pools: two pools are named a"),
        ({"pools": [{}, {}]}, "pools: two pools are named default"),
        ({"pools": {"a": {}}}, "pools: give a list"),
        ({"pool": {"name": "ingress"}}, "pool.name: 'ingress' is the deployment in front of the pools"),
        ({"pool": {"cost": 0}}, "pool.cost"),
        ({"pool": {"kv_memory": "1GiB", "gpu_memory_utilization": 0.5}}, "pool.kv_memory: gpu_memory_utilization"),
        ({"pool": {"kv_memory": "1GiB", "engine": {"kv_memory": "2GiB"}}}, "pool.engine: kv_memory is set in the pool"),
        ({**two_models(), "engine": {}}, "models: beside models there is engine"),
        ({"models": [{}, {"pool": {"name": "b"}}]}, "models: two models are named demo"),
        (
            {"models": [{"model": {"name": "a"}}, {"model": {"name": "b"}}]},
            "models: two pools are named default: pools of all models need names of their own",
        ),
        ({"models": [{"model": {"name": "a"}, "engin": {}}]}, "models.a.engin: unknown key; did you mean engine"),
        ({"models": [{"model": {"name": "a", "target": "./no"}}]}, "models.a.model.target: there is no folder"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_what_contradicts_itself_is_refused(tmp_path: Path, values: dict[str, Any], told: str) -> None:
    assert told in mistakes(tmp_path, values)


def test_folders_of_several_models_are_taken_from_the_files_folder(tmp_path: Path) -> None:
    (tmp_path / "weights").mkdir()
    values = {"models": [{"model": {"target": "weights"}}]}
    (served,) = loaded(tmp_path, values).served
    assert (served.model.target, served.name) == (str(tmp_path / "weights"), "weights")


def test_an_override_that_is_no_yaml_is_told(tmp_path: Path) -> None:
    assert "env: 'a: [' is not YAML" in mistakes(tmp_path, {}, {"env": "a: ["})
