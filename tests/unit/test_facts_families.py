"""Targets beyond Qwen: mamba2 hybrids and gpt-oss, from the published shapes of config.json."""

from pathlib import Path
from typing import Any

import pytest

from hybrid_serve.facts.checkpoint import read_drafter, read_target
from hybrid_serve.facts.errors import FactsError
from hybrid_serve.facts.families import NOT_PLANNED
from hybrid_serve.facts.layers import AttentionLayers, MambaLayers
from tests.cases import case_named, layers_of
from tests.unit.facts_checkpoints import Json, without, write_checkpoint
from tests.unit.family_configs import falcon_h1, gpt_oss, granite_hybrid, nemotron_h

TYPES = {"M": "linear_attention", "*": "full_attention", "E": "moe", "-": "mlp"}


def test_nemotron_3_nano_has_the_layers_of_the_table_of_cases(tmp_path: Path) -> None:
    facts = read_target(write_checkpoint(tmp_path, nemotron_h()))
    assert facts.layers == layers_of(case_named("mamba2-no-drafter")["target"], ("mamba", "full"))
    assert (facts.family, facts.num_layers, facts.layers.count) == ("nemotron-h", 52, 29)


def test_gpt_oss_has_the_layers_of_the_table_of_cases_sliding_first(tmp_path: Path) -> None:
    facts = read_target(write_checkpoint(tmp_path, gpt_oss()))
    assert facts.layers == layers_of(case_named("gpt-oss-eagle3")["target"], ("sliding", "full"))
    assert (facts.family, facts.num_layers) == ("gpt-oss", 36)


def test_granite_4_h_has_mamba2_layers_and_few_of_attention(tmp_path: Path) -> None:
    facts = read_target(write_checkpoint(tmp_path, granite_hybrid()))
    assert facts.layers.buckets == (
        MambaLayers(
            kind="mamba2",
            count=36,
            num_k_heads=1,
            num_v_heads=128,
            head_k_dim=128,
            head_v_dim=64,
            conv_kernel=4,
            ssm_dtype="bf16",
        ),
        AttentionLayers(kind="full", count=4, kv_heads=8, head_dim=128),
    )
    assert (facts.family, facts.num_layers) == ("granite-4-h", 40)


def test_every_layer_of_falcon_h1_is_in_both_buckets_attention_first(tmp_path: Path) -> None:
    facts = read_target(write_checkpoint(tmp_path, falcon_h1()))
    assert facts.layers.buckets == (
        AttentionLayers(kind="full", count=72, kv_heads=4, head_dim=128),
        MambaLayers(
            kind="mamba2",
            count=72,
            num_k_heads=2,
            num_v_heads=32,
            head_k_dim=256,
            head_v_dim=128,
            conv_kernel=4,
            ssm_dtype="bf16",
        ),
    )
    assert (facts.num_layers, facts.layers.count) == (72, 144)


def test_newer_nemotron_configs_list_their_layers_in_words(tmp_path: Path) -> None:
    pattern = nemotron_h()["hybrid_override_pattern"]
    words = [TYPES[letter] for letter in pattern]
    older = read_target(write_checkpoint(tmp_path / "a", nemotron_h()))
    newer = read_target(
        write_checkpoint(tmp_path / "b", nemotron_h(layers_block_type=words, hybrid_override_pattern=None))
    )
    assert newer.layers == older.layers
    assert newer.fingerprint == older.fingerprint


def test_a_nemotron_that_starts_with_attention_has_that_bucket_first(tmp_path: Path) -> None:
    config = nemotron_h(hybrid_override_pattern="*M-E")
    buckets = read_target(write_checkpoint(tmp_path, config)).layers.buckets
    assert [(type(bucket), bucket.count) for bucket in buckets] == [(AttentionLayers, 1), (MambaLayers, 1)]


@pytest.mark.parametrize(
    ("config", "asked", "expected"),
    [
        (nemotron_h(), "auto", "fp32"),
        (nemotron_h(mamba_ssm_cache_dtype=None), "auto", "fp32"),
        (nemotron_h(mamba_ssm_cache_dtype="bfloat16"), "auto", "bf16"),
        (nemotron_h(), "float16", "fp16"),
        (granite_hybrid(), "auto", "bf16"),
        (granite_hybrid(mamba_ssm_cache_dtype="float32"), "auto", "bf16"),
        (granite_hybrid(), "float32", "fp32"),
        (falcon_h1(), "auto", "bf16"),
    ],
)
def test_the_state_dtype_of_mamba2_is_the_one_vllm_settles_on(
    tmp_path: Path, config: Json, asked: str, expected: str
) -> None:
    (mamba,) = read_target(write_checkpoint(tmp_path, config), mamba_ssm_cache_dtype=asked).layers.mamba
    assert (mamba.conv_dtype, mamba.ssm_dtype) == ("bf16", expected)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (nemotron_h(hybrid_override_pattern="MX"), "hybrid_override_pattern is 'MX'"),
        (nemotron_h(hybrid_override_pattern=None), "has no field hybrid_override_pattern"),
        (nemotron_h(layers_block_type=["mamba", "conv"]), "layers_block_type"),
        (nemotron_h(mamba_num_heads=None), "has no field mamba_num_heads"),
        (granite_hybrid(layer_types=["mamba"]), "num_hidden_layers = 40 entries"),
        (granite_hybrid(mamba_d_head=32), "mamba_d_head is 32, expected 64"),
        (granite_hybrid(mamba_n_heads=100), "mamba_n_heads is 100, expected a divisor"),
        (granite_hybrid(layer_types=["attention"] * 40), "no hybrid: all its 40 layers"),
        (gpt_oss(sliding_window=None), "no hybrid: all its 36 layers"),
    ],
)
def test_a_config_that_contradicts_itself_names_the_field(tmp_path: Path, config: Json, reason: str) -> None:
    with pytest.raises(FactsError, match=reason):
        read_target(write_checkpoint(tmp_path, config))


@pytest.mark.parametrize(
    ("changes", "head_dim"), [({"mamba_d_head": "auto"}, 64), ({"mamba_d_head": None}, 64), ({"mamba_expand": 4}, 128)]
)
def test_a_mamba2_head_dim_of_auto_follows_from_the_inner_size(
    tmp_path: Path, changes: dict[str, Any], head_dim: int
) -> None:
    config = granite_hybrid(**({"mamba_d_head": "auto"} | changes))
    assert read_target(write_checkpoint(tmp_path, config)).layers.mamba[0].head_v_dim == head_dim


def test_falcon_h1_may_take_its_inner_size_from_the_hidden_size(tmp_path: Path) -> None:
    config = falcon_h1(mamba_d_ssm=None, mamba_n_heads=80)
    assert read_target(write_checkpoint(tmp_path, config)).layers.mamba[0].num_v_heads == 80
    config = without(falcon_h1(mamba_n_heads=8), "mamba_d_ssm")
    assert read_target(write_checkpoint(tmp_path, config)).layers.mamba[0].head_v_dim == 128


@pytest.mark.parametrize("architecture", sorted(NOT_PLANNED))
def test_a_model_that_is_not_planned_for_is_refused_with_what_is_missing(tmp_path: Path, architecture: str) -> None:
    folder = write_checkpoint(tmp_path, {"architectures": [architecture], "hidden_size": 2048})
    for read in (read_target, read_drafter):
        with pytest.raises(FactsError, match=f"{architecture}.*not planned for: it has .*(MLA|states)"):
            read(folder)
