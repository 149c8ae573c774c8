"""What a user gets for a configuration: a config, or all mistakes at once."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from deployments.config import AppConfig, ServedModel
from deployments.config_places import sections
from deployments.errors import AppError
from deployments.loading import DEMO_CONFIG, load_config
from deployments.pair import source_of
from hybrid_serve.sizes import format_size, parse_size

CONFIGS = Path(__file__).parents[2] / "configs"


def written(folder: Path, values: Any) -> Path:
    file = folder / "app.yaml"
    file.write_text(values if isinstance(values, str) else yaml.safe_dump(values))
    return file


def mistakes(folder: Path, values: Any, overrides: dict[str, Any] | None = None) -> str:
    with pytest.raises(AppError) as caught:
        load_config(written(folder, values), overrides)
    return str(caught.value)


@pytest.mark.parametrize("file", sorted(CONFIGS.glob("*.yaml")), ids=lambda file: file.stem)
def test_every_shipped_configuration_loads(file: Path) -> None:
    assert all(served.name and served.served_pools for served in load_config(file).served)


def test_without_a_file_it_is_the_demo() -> None:
    assert load_config(None) == load_config(DEMO_CONFIG)


def test_an_empty_file_serves_the_demo_pair(tmp_path: Path) -> None:
    config = load_config(written(tmp_path, ""))
    assert (config.model.name, config.model.target, config.model.drafter) == ("demo", "demo:target", "demo:draft")
    assert Path(source_of("demo:target")).name == "target"


def test_a_target_without_a_drafter_has_none(tmp_path: Path) -> None:
    config = load_config(written(tmp_path, {"model": {"target": "org/hybrid"}}))
    assert config.model.drafter is None and config.model.name == "org/hybrid"


def test_relative_folders_are_taken_from_the_files_folder(tmp_path: Path) -> None:
    (tmp_path / "weights").mkdir()
    config = load_config(written(tmp_path, {"model": {"target": "weights"}}))
    assert config.model.target == str(tmp_path / "weights")
    assert config.model.name == "weights"


def test_relative_folders_on_the_command_line_are_taken_from_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here" / "weights").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    config = load_config(written(tmp_path, {}), {"target": "weights"})
    assert config.model.target == str(tmp_path / "here" / "weights")


def test_a_missing_folder_is_told_with_the_full_path(tmp_path: Path) -> None:
    text = mistakes(tmp_path, {"model": {"target": "./nowhere"}})
    assert f"model.target: there is no folder {tmp_path}/nowhere" in text


def test_a_revision_of_a_folder_is_a_mistake(tmp_path: Path) -> None:
    (tmp_path / "weights").mkdir()
    text = mistakes(tmp_path, {"model": {"target": "weights", "target_revision": "main"}})
    assert "model.target_revision: 'main' is for hub ids" in text


def test_all_mistakes_are_reported_at_once(tmp_path: Path) -> None:
    text = mistakes(
        tmp_path,
        {
            "modle": {},
            "model": {"target": "./nowhere"},
            "engine": {"max_modle_len": 1, "kv_memory": "lots", "policy": "bset", "vllm_args": {"max-model-len": 1}},
            "pool": {"min_replicas": 3, "max_replicas": 2},
        },
        {"polcy": "stock"},
    )
    assert "8 mistakes" in text.splitlines()[0]
    for expected in (
        "modle: unknown key; did you mean model",
        "there is no folder",
        "engine.max_modle_len: unknown key; did you mean max_model_len",
        "engine.kv_memory: 'lots' is not a size",
        "engine.policy: input should be 'best' or 'stock' (given: 'bset')",
        "engine.vllm_args: the KV plan depends on max-model-len (set engine.max_model_len)",
        "pool.max_replicas: below min_replicas, which is 3",
        "polcy: unknown key; did you mean engine.policy",
    ):
        assert expected in text, text


def test_a_known_key_in_the_wrong_section_is_sent_to_its_own(tmp_path: Path) -> None:
    text = mistakes(tmp_path, {"pool": {"max_model_len": 5}, "max_num_seqs": 3})
    assert "pool.max_model_len: unknown key; did you mean engine.max_model_len?" in text
    assert "max_num_seqs: unknown key; did you mean engine.max_num_seqs" in text


def test_overrides_take_dotted_and_unambiguous_bare_names(tmp_path: Path) -> None:
    config = load_config(
        written(tmp_path, {"engine": {"max_model_len": 100}}),
        {"max_model_len": "200", "pool.env.A": "b", "engine": {"prefix_caching": "true"}, "kv_memory": "2GiB"},
    )
    assert config.engine.max_model_len == 200 and config.engine.prefix_caching
    assert config.engine.kv_memory == 2 * 2**30 and config.pool.env == {"A": "b"}


def test_an_override_that_two_sections_have_must_be_dotted(tmp_path: Path) -> None:
    text = mistakes(tmp_path, {}, {"name": "x"})
    assert "name: several sections have it, write model.name or pool.name" in text


@pytest.mark.parametrize("values", ["- a list", "just text", "a: [", "\t"])
def test_what_is_no_configuration_is_said_plainly(tmp_path: Path, values: str) -> None:
    assert "app.yaml" in mistakes(tmp_path, values)


def test_a_missing_file_is_said_plainly(tmp_path: Path) -> None:
    with pytest.raises(AppError, match=r"can't read the configuration .*nope\.yaml"):
        load_config(tmp_path / "nope.yaml")


def test_a_cpu_pool_with_gpus_is_a_mistake(tmp_path: Path) -> None:
    assert "pool.num_gpus: the pool's device is cpu" in mistakes(tmp_path, {"pool": {"device": "cpu", "num_gpus": 1}})


def test_two_ways_to_say_the_kv_memory_are_a_mistake(tmp_path: Path) -> None:
    text = mistakes(tmp_path, {"engine": {"kv_memory": "1GiB", "gpu_memory_utilization": 0.8}})
    assert "engine.kv_memory: gpu_memory_utilization decides the KV memory too" in text


def test_every_field_says_what_it_is_and_what_a_change_costs() -> None:
    assert all(outer.description for outer in [*AppConfig.model_fields.values(), *ServedModel.model_fields.values()])
    for section, kind in sections().items():
        for name, field in kind.model_fields.items():
            assert field.description, f"{section}.{name}"
            assert field.json_schema_extra["change"] in ("live", "replan", "replace"), f"{section}.{name}"


@pytest.mark.parametrize(
    ("text", "size"),
    [("1GiB", 2**30), ("512 MiB", 2**29), ("20GB", 20 * 10**9), ("1.5gib", 3 * 2**29), (4096, 4096), ("7", 7)],
)
def test_sizes_are_read_as_people_write_them(text: str | int, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "1 Gibi", "-1GiB", "0", "1e3", "nan"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        parse_size(text)


def test_sizes_are_shown_in_binary_units() -> None:
    assert [format_size(size) for size in (512, 2**20, 2**30, 3 * 2**40)] == [
        "512 B",
        "1.0 MiB",
        "1.0 GiB",
        "3.0 TiB",
    ]
