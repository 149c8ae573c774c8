"""Fingerprints: equal for copies, different for a checkpoint retrained in place."""

import hashlib
import os
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybrid_serve.facts import weights
from hybrid_serve.facts.checkpoint import read_drafter, read_target
from hybrid_serve.facts.errors import FactsError
from tests.unit.facts_checkpoints import (
    dflash,
    index_of,
    qwen3_5,
    qwen3_next,
    safetensors,
    write_checkpoint,
    write_hub_cache,
)

MIB = 1024**2


def drafter_file(seed: int, size: int = MIB) -> bytes:
    """A file whose header and size do not depend on `seed`."""
    return safetensors({"fc.weight": bytes([seed]) * size, "norm.weight": b"\0" * 256})


def test_a_drafter_retrained_in_place_has_another_fingerprint(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, dflash(), {"model.safetensors": drafter_file(1)})
    before = read_drafter(folder)
    (tmp_path / "model.safetensors").write_bytes(drafter_file(2))
    after = read_drafter(folder)
    assert before.weights_bytes == after.weights_bytes
    assert before.fingerprint.geometry == after.fingerprint.geometry
    assert before.fingerprint.weights != after.fingerprint.weights


def test_a_retrained_drafter_is_seen_even_if_only_the_middle_of_the_file_changed(tmp_path: Path) -> None:
    edge = b"\0" * 70_000
    first, second = (
        {"model.safetensors": safetensors({"a": edge, "b": bytes([seed]) * MIB, "c": edge})} for seed in (1, 2)
    )
    one = read_drafter(write_checkpoint(tmp_path / "1", dflash(), first)).fingerprint
    two = read_drafter(write_checkpoint(tmp_path / "2", dflash(), second)).fingerprint
    assert one.weights != two.weights


def test_more_kv_heads_change_the_geometry(tmp_path: Path) -> None:
    four = read_drafter(write_checkpoint(tmp_path / "4", dflash(num_key_value_heads=4))).fingerprint
    eight = read_drafter(write_checkpoint(tmp_path / "8", dflash())).fingerprint
    assert four.geometry != eight.geometry


@pytest.mark.parametrize(
    "change",
    [
        {"vocab_size": 1000},
        {"dtype": "float16"},
        {"linear_num_value_heads": 48},
        {"head_dim": 128},
        {"mamba_ssm_dtype": "bfloat16"},
        {"hidden_size": 4096},
    ],
    ids=lambda change: next(iter(change)),
)
def test_each_part_of_the_geometry_counts(tmp_path: Path, change: dict) -> None:
    plain = read_target(write_checkpoint(tmp_path / "plain", qwen3_5())).fingerprint
    changed = read_target(write_checkpoint(tmp_path / "changed", qwen3_5(**change))).fingerprint
    assert plain.geometry != changed.geometry


def test_a_copy_elsewhere_has_the_same_fingerprint(tmp_path: Path) -> None:
    here = write_checkpoint(tmp_path / "here", qwen3_5(), {"model.safetensors": drafter_file(1)})
    shutil.copytree(here, tmp_path / "there")
    os.utime(tmp_path / "there/model.safetensors", (0, 0))
    assert read_target(here).fingerprint == read_target(str(tmp_path / "there")).fingerprint


def test_a_replica_that_overrides_the_state_dtype_still_has_the_same_checkpoint(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, qwen3_next())
    plain, overridden = read_target(folder), read_target(folder, mamba_ssm_cache_dtype="float32")
    assert plain.layers != overridden.layers
    assert plain.fingerprint == overridden.fingerprint


def test_weights_bytes_are_the_data_of_all_shards_and_no_headers(tmp_path: Path) -> None:
    shards = {f"model-{i}.safetensors": safetensors({f"t{i}": b"x" * 1000 * i}) for i in (1, 2)}
    assert read_target(write_checkpoint(tmp_path, qwen3_5(), shards)).weights_bytes == 3000


def test_files_that_the_index_does_not_name_are_not_counted(tmp_path: Path) -> None:
    files = {
        "model-1.safetensors": safetensors({"a": b"x" * 100}),
        "consolidated.safetensors": safetensors({"a": b"x" * 100}),
        "model.safetensors.index.json": index_of("model-1.safetensors"),
    }
    assert read_target(write_checkpoint(tmp_path, qwen3_5(), files)).weights_bytes == 100


def test_a_missing_shard_is_found_before_the_engine_starts(tmp_path: Path) -> None:
    files = {
        "model-1.safetensors": drafter_file(1),
        "model.safetensors.index.json": index_of("model-1.safetensors", "model-2.safetensors"),
    }
    with pytest.raises(FactsError, match=r"lacks model-2\.safetensors"):
        read_target(write_checkpoint(tmp_path, qwen3_5(), files))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (drafter_file(1)[:-10], "has .* bytes, its header describes"),
        (drafter_file(1)[:20], "no readable safetensors header"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n", "Git LFS pointer"),
        (b"", "not a safetensors file"),
    ],
    ids=["cut-data", "cut-header", "lfs-pointer", "empty"],
)
def test_a_broken_weight_file_is_found_before_the_engine_starts(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(FactsError, match=message):
        read_drafter(write_checkpoint(tmp_path, dflash(), {"model.safetensors": content}))


def test_a_broken_index_is_named(tmp_path: Path) -> None:
    files = {"model.safetensors.index.json": b"{"}
    with pytest.raises(FactsError, match=r"index\.json is not JSON"):
        read_target(write_checkpoint(tmp_path, qwen3_5(), files))


@pytest.mark.parametrize("shared_store", [False, True])
def test_a_cached_snapshot_is_known_by_its_content_hashes(tmp_path: Path, shared_store: bool) -> None:
    content = drafter_file(1)
    snapshot = write_hub_cache(
        tmp_path, "z-lab/draft", "a" * 40, {"model.safetensors": content}, shared_store=shared_store
    )
    identity = weights.folder_weights(snapshot).identity
    digest = hashlib.sha256(content).hexdigest()
    assert identity == weights.content_identity({"model.safetensors": digest})


def test_only_headers_and_samples_are_read_of_a_large_file(tmp_path: Path) -> None:
    """A 64 GiB file, sparse: reading its data would take minutes."""
    size = 64 * 1024**3
    header = b'{"t": {"dtype": "U8", "shape": [%d], "data_offsets": [0, %d]}}' % (size, size)
    path = tmp_path / "model.safetensors"
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + size)
    assert weights.folder_weights(tmp_path).data_bytes == size


@settings(max_examples=50, deadline=None)
@given(size=st.integers(0, 64 * 4096), position=st.floats(0, 1, exclude_max=True))
def test_any_change_in_a_small_file_changes_its_sample(
    tmp_path_factory: pytest.TempPathFactory, size: int, position: float
) -> None:
    """Up to 64 pieces of 4 KiB nothing is skipped."""
    folder = tmp_path_factory.mktemp("sample")
    path = folder / "model.safetensors"
    content = bytearray(safetensors({"t": b"\0" * size}))
    path.write_bytes(content)
    before = weights.sample_digest(path)
    content[-1 - int(position * size) if size else -1] ^= 1
    path.write_bytes(content)
    assert weights.sample_digest(path) != before
