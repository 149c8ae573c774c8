"""Facts of targets and drafters from the published shapes of config.json."""

import json
from pathlib import Path

import pytest

from hybrid_serve.facts.checkpoint import read_drafter, read_target
from hybrid_serve.facts.errors import FactsError
from hybrid_serve.facts.layers import AttentionLayers, MambaLayers
from tests.unit.facts_checkpoints import (
    dflash,
    qwen3_5,
    qwen3_5_text,
    qwen3_next,
    safetensors,
    without,
    write_checkpoint,
)

GDN = dict(kind="gdn", num_k_heads=16, num_v_heads=32, head_k_dim=128, head_v_dim=128, conv_kernel=4, conv_dtype="bf16")
DEMO = Path(__file__).parents[2] / "hybrid_serve" / "demo"


def test_qwen3_5_35b_has_30_gdn_and_10_full_layers_gdn_first(tmp_path: Path) -> None:
    facts = read_target(write_checkpoint(tmp_path, qwen3_5()))
    assert facts.layers.buckets == (
        MambaLayers(count=30, ssm_dtype="fp32", **GDN),
        AttentionLayers(kind="full", count=10, kv_heads=2, head_dim=256),
    )
    assert (facts.family, facts.architecture) == ("qwen3.5-moe", "Qwen3_5MoeForConditionalGeneration")
    assert (facts.num_layers, facts.hidden_size, facts.vocab_size) == (40, 2048, 248320)
    assert (facts.dtype, facts.max_position_embeddings) == ("bf16", 262144)
    assert (facts.revision, facts.weights_bytes, facts.fingerprint.weights) == (None, None, "")


@pytest.mark.parametrize(
    ("layers", "kv_heads", "v_heads", "gdn", "full"), [(64, 4, 48, 48, 16), (32, 4, 32, 24, 8)], ids=["27B", "9B"]
)
def test_dense_qwen3_5_is_read_with_its_own_counts(
    tmp_path: Path, layers: int, kv_heads: int, v_heads: int, gdn: int, full: int
) -> None:
    config = qwen3_5(
        "Qwen3_5ForConditionalGeneration",
        num_hidden_layers=layers,
        layer_types=None,
        full_attention_interval=4,
        num_key_value_heads=kv_heads,
        linear_num_value_heads=v_heads,
    )
    facts = read_target(write_checkpoint(tmp_path, config))
    (mamba,), (attention,) = facts.layers.mamba, facts.layers.attention
    assert (mamba.count, mamba.num_v_heads, attention.count, attention.kv_heads) == (gdn, v_heads, full, kv_heads)
    assert facts.family == "qwen3.5"


def test_a_text_only_qwen3_5_may_have_everything_at_the_root(tmp_path: Path) -> None:
    config = qwen3_5_text() | {"architectures": ["Qwen3_5MoeForCausalLM"]}
    assert read_target(write_checkpoint(tmp_path, config)).layers.mamba[0].count == 30


def test_qwen3_next_80b_takes_every_fourth_layer_as_full(tmp_path: Path) -> None:
    facts = read_target(write_checkpoint(tmp_path, qwen3_next()))
    assert [(bucket.count, type(bucket)) for bucket in facts.layers.buckets] == [
        (36, MambaLayers),
        (12, AttentionLayers),
    ]
    assert facts.family == "qwen3-next"


def test_the_first_layer_decides_which_bucket_comes_first(tmp_path: Path) -> None:
    config = qwen3_5(layer_types=["full_attention"] + ["linear_attention"] * 39)
    buckets = read_target(write_checkpoint(tmp_path, config)).layers.buckets
    assert [type(bucket) for bucket in buckets] == [AttentionLayers, MambaLayers]


@pytest.mark.parametrize(
    ("config", "asked", "expected"),
    [
        (qwen3_5(), "auto", "fp32"),
        (qwen3_5(mamba_ssm_dtype="bfloat16"), "auto", "bf16"),
        (qwen3_5(mamba_ssm_dtype=None), "auto", "bf16"),
        (qwen3_5(mamba_ssm_dtype=None, dtype="float16"), "auto", "fp16"),
        (qwen3_5(), "bfloat16", "bf16"),
        (qwen3_next(), "auto", "bf16"),
        (qwen3_next(mamba_ssm_dtype="float32"), "auto", "bf16"),
        (qwen3_next(), "float32", "fp32"),
    ],
)
def test_the_state_dtype_is_the_one_vllm_settles_on(tmp_path: Path, config: dict, asked: str, expected: str) -> None:
    facts = read_target(write_checkpoint(tmp_path, config), mamba_ssm_cache_dtype=asked)
    assert facts.layers.mamba[0].ssm_dtype == expected
    assert facts.layers.mamba[0].conv_dtype == facts.dtype


def test_an_unknown_state_dtype_is_refused_with_those_that_exist(tmp_path: Path) -> None:
    with pytest.raises(FactsError, match=r"'int4'.*float32"):
        read_target(write_checkpoint(tmp_path, qwen3_next()), mamba_ssm_cache_dtype="int4")


def test_a_float32_checkpoint_is_planned_in_bfloat16_as_vllm_runs_it(tmp_path: Path) -> None:
    assert read_target(write_checkpoint(tmp_path, qwen3_next(torch_dtype="float32"))).dtype == "bf16"


def test_without_a_dtype_in_the_config_that_of_the_weights_is_taken(tmp_path: Path) -> None:
    files = {"model.safetensors": safetensors({"a": b"12"}, dtype="F16")}
    folder = write_checkpoint(tmp_path, without(qwen3_next(), "torch_dtype"), files)
    assert read_target(folder).dtype == "fp16"


@pytest.mark.parametrize("name", ["rope_parameters", "rope_scaling"])
def test_yarn_stretches_the_longest_context(tmp_path: Path, name: str) -> None:
    rope = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 262144}
    assert read_target(write_checkpoint(tmp_path, qwen3_5(**{name: rope}))).max_position_embeddings == 1048576


def test_a_quantised_checkpoint_may_bring_its_own_kv_cache_dtype(tmp_path: Path) -> None:
    scheme = {"quant_method": "compressed-tensors", "kv_cache_scheme": {"num_bits": 8, "type": "float"}}
    config = qwen3_5() | {"quantization_config": scheme}
    assert read_target(write_checkpoint(tmp_path, config)).kv_cache_dtype == "fp8"
    weight_only = qwen3_5() | {"quantization_config": {"quant_method": "fp8"}}
    assert read_target(write_checkpoint(tmp_path, weight_only)).kv_cache_dtype is None


def test_the_drafter_has_5_sliding_layers_then_a_full_one(tmp_path: Path) -> None:
    facts = read_drafter(write_checkpoint(tmp_path, dflash()))
    assert facts.layers.buckets == (
        AttentionLayers(kind="sliding", count=5, kv_heads=8, head_dim=128, window=4096),
        AttentionLayers(kind="full", count=1, kv_heads=8, head_dim=128),
    )
    assert (facts.method, facts.block_size, facts.max_speculative_tokens) == ("dflash", 16, 15)
    assert (facts.mask_token_id, facts.num_target_layers, facts.target_hidden_size) == (248070, 40, 2048)
    assert facts.target_layer_ids == (1, 6, 11, 16, 22, 27, 32, 37)


def test_same_kind_layers_share_a_bucket_wherever_they_stand(tmp_path: Path) -> None:
    types = ["full_attention", "sliding_attention", "full_attention", "sliding_attention"]
    facts = read_drafter(write_checkpoint(tmp_path, dflash(num_hidden_layers=4, layer_types=types)))
    assert [(bucket.kind, bucket.count) for bucket in facts.layers.attention] == [("full", 2), ("sliding", 2)]


DFLASH_CONFIG = dflash()["dflash_config"]
ALL_FULL = ["full_attention"] * 6


@pytest.mark.parametrize(
    ("config", "windows"),
    [
        (without(dflash(use_sliding_window=False), "layer_types", "sliding_window"), [None] * 6),
        (without(dflash(max_window_layers=4), "layer_types"), [None] * 4 + [4096] * 2),
        (dflash(layer_types=ALL_FULL), [None] * 6),
        (dflash(layer_types=ALL_FULL, dflash_config=DFLASH_CONFIG | {"use_swa": True}), [4096] * 6),
        (dflash(dflash_config=DFLASH_CONFIG | {"use_swa": True}), [4096] * 5 + [None]),
        (dflash(dflash_config=DFLASH_CONFIG | {"swa_window_size": 2048}), [2048] * 5 + [None]),
        (
            without(
                dflash(dflash_config=DFLASH_CONFIG | {"use_swa": True, "swa_window_size": 1024}),
                "layer_types",
                "sliding_window",
            ),
            [1024] * 6,
        ),
    ],
    ids=["no-types", "max-window-layers", "all-full", "use-swa", "use-swa-mixed", "swa-window", "swa-only"],
)
def test_windows_of_a_drafter_follow_vllm(tmp_path: Path, config: dict, windows: list[int | None]) -> None:
    buckets = read_drafter(write_checkpoint(tmp_path, config)).layers.attention
    assert [bucket.window for bucket in buckets for _ in range(bucket.count)] == windows


def test_sliding_layers_without_a_window_are_an_error_here_not_in_the_engine(tmp_path: Path) -> None:
    with pytest.raises(FactsError, match="sliding_window"):
        read_drafter(write_checkpoint(tmp_path, dflash(use_sliding_window=False)))


def test_a_drafter_in_speculators_format_is_read_as_vllm_rewrites_it(tmp_path: Path) -> None:
    layer = without(dflash(sliding_window=2048), "architectures", "dflash_config", "block_size", "num_target_layers")
    config = {
        "architectures": ["DFlashSpeculator"],
        "speculators_model_type": "dflash",
        "transformer_layer_config": layer,
        "aux_hidden_state_layer_ids": [2, 7, 12],
        "mask_token_id": 248070,
        "block_size": 8,
    }
    facts = read_drafter(write_checkpoint(tmp_path, config))
    assert facts.target_layer_ids == (1, 6, 11)
    assert (facts.block_size, facts.mask_token_id, facts.dtype) == (8, 248070, "bf16")
    assert facts.layers.attention[0].window == 2048


def test_a_drafter_of_unlike_width_says_what_it_is_fed(tmp_path: Path) -> None:
    facts = read_drafter(write_checkpoint(tmp_path, dflash(target_hidden_size=5120)))
    assert (facts.hidden_size, facts.target_hidden_size) == (2048, 5120)


def test_a_path_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(FactsError, match="nowhere does not exist"):
        read_target(str(tmp_path / "nowhere"))


def test_a_folder_without_config_is_named(tmp_path: Path) -> None:
    with pytest.raises(FactsError, match=r"has no config\.json"):
        read_target(str(tmp_path))


def test_a_file_in_place_of_a_folder_is_an_error(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, qwen3_next())
    with pytest.raises(FactsError, match="is a file"):
        read_target(str(tmp_path / "config.json"))


def test_a_revision_of_a_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FactsError, match="revision 'main'"):
        read_target(write_checkpoint(tmp_path, qwen3_next()), "main")


@pytest.mark.parametrize("text", ["{", "[1]", "\xff"])
def test_a_config_that_is_no_json_object_is_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(FactsError, match=r"config\.json"):
        read_target(str(tmp_path))


@pytest.mark.parametrize(
    "field", ["num_hidden_layers", "num_key_value_heads", "head_dim", "linear_num_value_heads", "vocab_size"]
)
def test_a_missing_field_is_named_with_its_section(tmp_path: Path, field: str) -> None:
    config = qwen3_5()
    del config["text_config"][field]
    with pytest.raises(FactsError, match=rf"has no field text_config\.{field}"):
        read_target(write_checkpoint(tmp_path, config))


@pytest.mark.parametrize("field", ["block_size", "vocab_size", "num_hidden_layers"])
def test_a_missing_field_of_a_drafter_is_named(tmp_path: Path, field: str) -> None:
    with pytest.raises(FactsError, match=f"has no field {field}"):
        read_drafter(write_checkpoint(tmp_path, without(dflash(), field)))


@pytest.mark.parametrize("field", ["mask_token_id", "target_layer_ids"])
def test_a_missing_dflash_field_is_named_with_its_section(tmp_path: Path, field: str) -> None:
    with pytest.raises(FactsError, match=rf"dflash_config\.{field}"):
        read_drafter(write_checkpoint(tmp_path, dflash(dflash_config=without(DFLASH_CONFIG, field))))


@pytest.mark.parametrize("value", ["many", 0, True, 2.5])
def test_a_field_of_the_wrong_kind_is_shown(tmp_path: Path, value: object) -> None:
    with pytest.raises(FactsError, match=r"num_key_value_heads is .*expected an integer"):
        read_target(write_checkpoint(tmp_path, qwen3_next(num_key_value_heads=value)))


def test_layer_types_of_the_wrong_length_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FactsError, match=r"layer_types .*num_hidden_layers = 40"):
        read_target(write_checkpoint(tmp_path, qwen3_5(layer_types=["linear_attention"])))


def test_a_model_without_linear_attention_is_refused_by_name(tmp_path: Path) -> None:
    config = {"architectures": ["LlamaForCausalLM"], "hidden_size": 4096}
    with pytest.raises(FactsError, match=r"LlamaForCausalLM.*qwen3-next.*Qwen3NextForCausalLM"):
        read_target(write_checkpoint(tmp_path, config))


def test_a_hybrid_family_with_only_full_layers_is_no_hybrid(tmp_path: Path) -> None:
    with pytest.raises(FactsError, match="no hybrid: all its 40 layers"):
        read_target(write_checkpoint(tmp_path, qwen3_5(layer_types=["full_attention"] * 40)))


def test_a_drafter_given_as_target_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(FactsError, match="is a drafter, given as target"):
        read_target(write_checkpoint(tmp_path, dflash()))


def test_a_target_given_as_drafter_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(FactsError, match="is a target, given as drafter"):
        read_drafter(write_checkpoint(tmp_path, qwen3_5()))


def test_another_drafting_method_is_refused_with_the_known_names(tmp_path: Path) -> None:
    config = dflash(architectures=["MedusaModel"])
    with pytest.raises(FactsError, match=r"MedusaModel.*DFlashDraftModel"):
        read_drafter(write_checkpoint(tmp_path, config))


def test_a_config_without_architectures_names_the_field(tmp_path: Path) -> None:
    with pytest.raises(FactsError, match="has no field architectures"):
        read_target(write_checkpoint(tmp_path, without(qwen3_next(), "architectures")))


@pytest.mark.skipif(not (DEMO / "target/config.json").exists(), reason="the demo models are not here")
def test_the_shipped_demo_pair_is_read_and_fits() -> None:
    from hybrid_serve.facts.pairing import check_pair

    target, drafter = read_target(str(DEMO / "target")), read_drafter(str(DEMO / "draft"))
    assert target.layers.mamba and target.layers.attention and drafter.layers.attention
    assert check_pair(target, drafter, 1) == ()
    config = json.loads((DEMO / "target/config.json").read_text())
    assert target.num_layers == config.get("text_config", config)["num_hidden_layers"]
