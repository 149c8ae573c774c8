"""What differs between two configurations, in a user's words, and what it does to the replicas of each pool."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from deployments.config import AppConfig
from deployments.config_changes import FieldChange, changes_between, field_changes, renamed_pools, retrained
from deployments.generation import offer_of
from hybrid_serve.rollout.wire import GenerationOffer
from tests.demo_app import app_values
from tests.unit.facts_checkpoints import safetensors

MIB = 2**20


def three_pools(folder: Path) -> dict[str, Any]:
    values = app_values(folder)
    pool = values.pop("pool")
    del values["engine"]["kv_memory"]
    values["pools"] = [{**pool, "name": name, "kv_memory": f"{size}MiB"} for name, size in SIZES.items()]
    return values


SIZES = {"small": 48, "middle": 96, "large": 144}


def offered(values: dict[str, Any]) -> GenerationOffer:
    offer = offer_of(AppConfig.model_validate(values), "app")
    assert isinstance(offer, GenerationOffer), str(offer)
    return offer


def copy_of(values: dict[str, Any]) -> dict[str, Any]:
    copied: dict[str, Any] = json.loads(json.dumps(values))
    return copied


def fields(old: dict[str, Any], new: dict[str, Any]) -> list[tuple[str, Any, Any, str]]:
    found = field_changes(AppConfig.model_validate(old), AppConfig.model_validate(new))
    return [(one.path, one.old, one.new, one.cost) for one in found]


def test_nothing_differs_between_forms_of_one_configuration() -> None:
    one = {"pool": {"name": "a"}, "limits": {"retries": 2}}
    for other in ({"pools": [{"name": "a"}]}, {"models": [{"pool": {"name": "a"}}]}):
        assert fields(one, other) == []


def test_fields_are_named_as_overrides_name_them_with_their_costs() -> None:
    old = {
        "engine": {"num_speculative_tokens": 7},
        "workload": {"contexts": [{"tokens": 512}]},
        "pools": [{"name": "h200", "kv_memory": "1GiB", "engine": {"max_num_seqs": 8}}, {"name": "h20", "cost": 1}],
        "rollout": {"bake_s": "5m", "gates": {"ttft_ratio": 2}},
    }
    new = {
        "engine": {"num_speculative_tokens": 5},
        "workload": {"contexts": [{"tokens": 512, "weight": 2}]},
        "pools": [
            {"name": "h20", "cost": 2, "num_cpus": 4},
            {"name": "h200", "kv_memory": "2GiB", "engine": {"tensor_parallel_size": 2}},
        ],
        "rollout": {"bake_s": 60, "gates": {"ttft_ratio": 3}},
        "limits": {"max_body": "1MiB"},
        "ingress": {"num_cpus": 1},
    }
    assert sorted(fields(old, new)) == sorted(
        [
            ("engine.num_speculative_tokens", 7, 5, "replan"),
            ("workload.contexts", [{"tokens": 512}], [{"tokens": 512, "weight": 2.0}], "replan"),
            ("pools.h200.kv_memory", 1024 * MIB, 2048 * MIB, "replan"),
            ("pools.h200.engine.max_num_seqs", 8, None, "replan"),
            ("pools.h200.engine.tensor_parallel_size", None, 2, "replace"),
            ("pools.h20.num_cpus", 1.0, 4.0, "replace"),
            ("pools.h20.cost", 1.0, 2.0, "live"),
            ("limits.max_body", 32 * MIB, MIB, "live"),
            ("ingress.num_cpus", 0.0, 1.0, "replace"),
            ("rollout.bake_s", 300.0, 60.0, "live"),
            ("rollout.gates.ttft_ratio", 2.0, 3.0, "live"),
        ]
    )


def test_a_model_that_is_renamed_is_still_the_one_model() -> None:
    assert fields({"model": {"name": "a"}}, {"model": {"name": "b"}}) == [("model.name", "a", "b", "replace")]


def test_models_come_and_go_by_their_names() -> None:
    a, b, c = ({"model": {"name": name}, "pool": {"name": f"of-{name}"}} for name in "abc")
    changed = {**b, "engine": {"max_num_seqs": 8}}
    assert fields({"models": [a, b]}, {"models": [changed, c]}) == [
        ("models.a", ["of-a"], None, "replace"),
        ("models.b.engine.max_num_seqs", 256, 8, "replan"),
        ("models.c", None, ["of-c"], "replace"),
    ]


def test_pools_are_added_removed_and_renamed() -> None:
    old = AppConfig.model_validate({"pools": [{"name": "a", "cost": 2}, {"name": "b"}, {"name": "c", "cost": 9}]})
    new = AppConfig.model_validate({"pools": [{"name": "z", "cost": 2}, {"name": "b"}, {"name": "d", "cost": 8}]})
    assert renamed_pools(old, new) == (("a", "z"),)
    found = {one.path: (one.old is None, one.new is None, one.cost) for one in field_changes(old, new)}
    assert found == {
        "pools.a": (False, True, "replace"),
        "pools.c": (False, True, "replace"),
        "pools.z": (True, False, "replace"),
        "pools.d": (True, False, "replace"),
    }


def test_only_pools_whose_engines_depend_on_it_restart(pair_folder: Path) -> None:
    old = three_pools(pair_folder)
    new = copy_of(old)
    new["pools"][0]["cost"] = 3
    new["pools"][1]["kv_memory"] = "120MiB"
    new["pools"][2]["num_cpus"] = 0.2
    changes = changes_between(offered(old), offered(new))
    assert {one.pool: (one.how, one.restarts) for one in changes.pools} == {
        "small": ("adopt", False),
        "middle": ("replan", True),
        "large": ("replace", True),
    }
    small, middle, _ = changes.pools
    assert small.before == small.after
    assert middle.before is not None and middle.after is not None
    assert (middle.after.kv_tokens or 0) > (middle.before.kv_tokens or 0)
    assert (middle.after.concurrency or 0) > (middle.before.concurrency or 0)
    assert changes.cost == "replace" and not changes.ingress_restarts and changes.renamed == ()


def test_what_the_pools_agree_on_restarts_those_that_did_not_change_themselves(pair_folder: Path) -> None:
    old = three_pools(pair_folder)
    old["engine"]["max_model_len"] = "fleet"
    old["pools"][0]["kv_memory"] = "9MiB"
    new = copy_of(old)
    new["pools"][0]["kv_memory"] = "10MiB"
    changes = changes_between(offered(old), offered(new))
    assert [one.path for one in changes.fields] == ["pools.small.kv_memory"]
    assert {one.how for one in changes.pools} == {"replan"}


def test_another_k_restarts_every_engine_and_its_figures_say_so(pair_folder: Path) -> None:
    old = three_pools(pair_folder)
    new = copy_of(old)
    new["engine"]["num_speculative_tokens"] = 5
    changes = changes_between(offered(old), offered(new))
    assert changes.fields == (FieldChange(path="engine.num_speculative_tokens", old=7, new=5, cost="replan"),)
    for one in changes.pools:
        assert one.how == "replan" and one.before is not None and one.after is not None
        assert (one.before.num_speculative_tokens, one.after.num_speculative_tokens) == (7, 5)
    assert json.loads(json.dumps(changes.to_json()))["pools"][0]["after"]["num_speculative_tokens"] == 5


def test_pools_that_come_and_go_have_figures_on_one_side(pair_folder: Path) -> None:
    old, new = three_pools(pair_folder), three_pools(pair_folder)
    gone, came = old["pools"].pop(), new["pools"].pop(0)
    changes = changes_between(offered(new), offered(old))
    by_name = {one.pool: one for one in changes.pools}
    assert (by_name[gone["name"]].how, by_name[gone["name"]].after) == ("remove", None)
    assert (by_name[came["name"]].how, by_name[came["name"]].before) == ("add", None)


def test_the_same_configuration_costs_nothing(pair_folder: Path) -> None:
    offer = offered(three_pools(pair_folder))
    changes = changes_between(offer, offered(three_pools(pair_folder)))
    assert changes.cost is None and changes.fields == ()


@pytest.mark.parametrize("role", ["target", "drafter"])
def test_a_checkpoint_that_was_changed_in_place_can_not_be_rolled_out(
    pair_folder: Path, tmp_path: Path, role: str
) -> None:
    shutil.copytree(pair_folder, tmp_path / "pair")
    values = three_pools(tmp_path / "pair")
    before = offered(values)
    running = {name: pool.config for name, pool in before.pools.items()}
    folder = tmp_path / "pair" / ("draft" if role == "drafter" else "target")
    (folder / "model.safetensors").write_bytes(safetensors({"w": b"new!"}))
    after = offered(values)
    ((model, problem),) = retrained(after, running)
    assert model == "demo" and problem.pools == tuple(SIZES)
    fleet = {name: getattr(offer.pools["small"].config.fleet, f"{role}_fingerprint") for name, offer in
             (("before", before), ("after", after))}  # fmt: skip
    assert str(fleet["before"]) in problem.reason and str(fleet["after"]) in problem.reason
    assert str(folder) in problem.reason and "folder of its own" in problem.remedy
    assert retrained(before, running) == ()


def test_retrained_weights_in_a_folder_of_their_own_are_no_problem(pair_folder: Path, tmp_path: Path) -> None:
    shutil.copytree(pair_folder / "draft", tmp_path / "newer")
    (tmp_path / "newer" / "model.safetensors").write_bytes(safetensors({"w": b"new!"}))
    values = three_pools(pair_folder)
    running = {name: pool.config for name, pool in offered(values).pools.items()}
    values["model"]["drafter"] = str(tmp_path / "newer")
    assert retrained(offered(values), running) == ()
