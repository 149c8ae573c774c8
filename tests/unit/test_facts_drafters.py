"""Drafters beside DFlash: EAGLE-3, DSpark, a target's own MTP modules, and dense models."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hybrid_serve.facts.checkpoint import read_drafter, read_mtp, read_target
from hybrid_serve.facts.errors import FactsError
from hybrid_serve.facts.layers import AttentionLayers, Layers
from hybrid_serve.facts.pairing import check_pair, speculative_tokens
from tests.cases import case_named, layers_of
from tests.unit.facts_checkpoints import Json, dflash, qwen3_5, qwen3_next, safetensors, without, write_checkpoint
from tests.unit.family_configs import (
    dspark,
    dspark_speculators,
    eagle3,
    falcon_h1,
    gpt_oss,
    granite_hybrid,
    nemotron_h,
    qwen3_dense,
)


def test_the_eagle3_drafter_of_gpt_oss_has_the_layer_of_the_table_of_cases(tmp_path: Path) -> None:
    facts = read_drafter(write_checkpoint(tmp_path, eagle3()))
    assert facts.layers == layers_of(case_named("gpt-oss-eagle3")["drafter"], ("full",))
    assert (facts.method, facts.vocab_size, facts.target_layer_ids) == ("eagle3", 201088, ())
    assert (facts.block_size, facts.mask_token_id, facts.max_speculative_tokens) == (None, None, None)


def test_an_eagle3_drafter_under_the_name_of_llama_is_told_by_its_draft_vocabulary(tmp_path: Path) -> None:
    config = eagle3(architectures=["LlamaForCausalLM"])
    assert read_drafter(write_checkpoint(tmp_path, config)).method == "eagle3"
    config = without(config, "draft_vocab_size")
    assert read_drafter(write_checkpoint(tmp_path, config)).method == "draft_model"


@pytest.mark.parametrize(
    "changes",
    [
        {"eagle_aux_hidden_state_layer_ids": [2, 18, 33]},
        {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 18, 33]}},
    ],
)
def test_eagle3_layer_ids_count_the_embedding_and_ours_do_not(tmp_path: Path, changes: dict[str, Any]) -> None:
    assert read_drafter(write_checkpoint(tmp_path, eagle3(**changes))).target_layer_ids == (1, 17, 32)


def test_an_eagle3_drafter_in_speculators_format_is_read_as_vllm_rewrites_it(tmp_path: Path) -> None:
    layer = without(eagle3(), "architectures", "draft_vocab_size")
    config = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "transformer_layer_config": layer,
        "draft_vocab_size": 32000,
        "target_hidden_size": 2880,
    }
    facts = read_drafter(write_checkpoint(tmp_path, config))
    assert (facts.method, facts.layers.count, facts.target_hidden_size) == ("eagle3", 1, 2880)


def test_another_speculators_format_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(FactsError, match=r"peagle.*one of dflash, dspark, eagle3"):
        read_drafter(write_checkpoint(tmp_path, {"speculators_model_type": "peagle"}))


def test_the_published_dspark_drafter_has_the_layers_of_the_table_of_cases(tmp_path: Path) -> None:
    facts = read_drafter(write_checkpoint(tmp_path, dspark_speculators()))
    assert facts.layers == layers_of(case_named("dspark-same-bytes")["drafter"], ("sliding",))
    assert (facts.method, facts.mask_token_id) == ("dspark", 248070)
    assert facts.target_layer_ids == (1, 10, 19, 28, 37)


@pytest.mark.parametrize(
    ("config", "largest"),
    [
        (dspark(), 7),
        (dspark(sample_from_anchor=False), 6),
        (dspark_speculators(), 7),
        (dspark_speculators(sample_from_anchor=True), 8),
    ],
)
def test_a_dspark_block_is_one_token_longer_where_the_anchor_drafts(tmp_path: Path, config: Json, largest: int) -> None:
    assert read_drafter(write_checkpoint(tmp_path, config)).max_speculative_tokens == largest


def test_a_dspark_drafter_of_another_kind_is_refused(tmp_path: Path) -> None:
    config = dspark(architectures=["DSparkDraftModel"], model_type="deepseek_v4")
    with pytest.raises(FactsError, match=r"deepseek_v4.*MLA"):
        read_drafter(write_checkpoint(tmp_path, config))
    config = dspark(architectures=["DSparkDraftModel"])
    assert read_drafter(write_checkpoint(tmp_path, config)).method == "dspark"


def test_a_dense_drafter_has_one_bucket_of_full_layers(tmp_path: Path) -> None:
    facts = read_drafter(write_checkpoint(tmp_path, qwen3_dense()))
    assert facts.layers == layers_of(case_named("coder-next-dense-4b-fp8")["drafter"], ("full",))
    assert (facts.method, facts.max_speculative_tokens, facts.hidden_size) == ("draft_model", None, 2560)


def test_a_dense_drafter_with_sliding_layers_is_refused(tmp_path: Path) -> None:
    config = qwen3_dense(use_sliding_window=True, sliding_window=4096, max_window_layers=10)
    with pytest.raises(FactsError, match="sliding_window is 4096, expected no sliding layers"):
        read_drafter(write_checkpoint(tmp_path, config))


def test_llama_heads_that_the_config_leaves_out_follow_from_the_others(tmp_path: Path) -> None:
    config = without(
        qwen3_dense(architectures=["LlamaForCausalLM"], model_type="llama"), "num_key_value_heads", "head_dim"
    )
    (bucket,) = read_drafter(write_checkpoint(tmp_path, config)).layers.attention
    assert (bucket.kv_heads, bucket.head_dim) == (32, 80)


@pytest.mark.parametrize(
    ("case", "config"),
    [
        ("mtp3-2x3090-1072", qwen3_5(mtp_num_hidden_layers=1)),
        ("80b-mtp2", qwen3_next()),
        ("27b-h20-mtp3-6.09x", qwen3_5("Qwen3_5ForConditionalGeneration", num_key_value_heads=4)),
    ],
)
def test_mtp_modules_have_the_layer_of_the_table_of_cases(tmp_path: Path, case: str, config: Json) -> None:
    facts = read_mtp(write_checkpoint(tmp_path, config))
    assert facts.layers == layers_of(case_named(case)["drafter"], ("full",))
    assert (facts.method, facts.mtp_modules, facts.default_speculative_tokens) == ("mtp", 1, 1)


@pytest.mark.parametrize(
    ("case", "config"),
    [
        ("mtp3-2x3090-1072", qwen3_5()),
        ("80b-mtp2", qwen3_next(mamba_ssm_dtype="float32")),
        (
            "27b-h20-mtp3-6.09x",
            qwen3_5(
                "Qwen3_5ForConditionalGeneration",
                num_hidden_layers=64,
                layer_types=None,
                num_key_value_heads=4,
                linear_num_value_heads=48,
            ),
        ),
    ],
)
def test_the_targets_of_the_mtp_cases_have_the_layers_of_the_table(tmp_path: Path, case: str, config: Json) -> None:
    facts = read_target(write_checkpoint(tmp_path, config), mamba_ssm_cache_dtype="float32")
    assert facts.layers == layers_of(case_named(case)["target"], ("mamba", "full"))


def test_mtp_weights_are_counted_with_the_targets(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, qwen3_next(), {"model.safetensors": safetensors({"a": b"12"})})
    assert (read_target(folder).weights_bytes, read_mtp(folder).weights_bytes) == (2, 0)


def test_a_nemotron_mtp_module_may_have_several_attention_layers(tmp_path: Path) -> None:
    config = nemotron_h(num_nextn_predict_layers=1, mtp_hybrid_override_pattern="*E*")
    facts = read_mtp(write_checkpoint(tmp_path, config))
    assert facts.layers == Layers(buckets=(AttentionLayers(kind="full", count=2, kv_heads=2, head_dim=128),))
    assert facts.mtp_modules == 1


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (qwen3_5(mtp_num_hidden_layers=0), "carries no MTP modules: its config has none"),
        (nemotron_h(), "carries no MTP modules: its config has none"),
        (falcon_h1(), "carries no MTP modules: vLLM has no MTP modules for this family"),
        (nemotron_h(num_nextn_predict_layers=2), "num_nextn_predict_layers is 2, expected 1"),
        (nemotron_h(num_nextn_predict_layers=1, mtp_hybrid_override_pattern="M"), "attention and MoE layers only"),
    ],
)
def test_a_target_without_mtp_modules_is_told_so(tmp_path: Path, config: Json, reason: str) -> None:
    with pytest.raises(FactsError, match=reason):
        read_mtp(write_checkpoint(tmp_path, config))


def test_each_method_fits_the_target_it_was_made_for(tmp_path: Path) -> None:
    def folder(name: str, config: Json) -> str:
        return write_checkpoint(tmp_path / name, config)

    oss, qwen, following = (
        read_target(folder(name, config))
        for name, config in (("oss", gpt_oss()), ("qwen", qwen3_5()), ("next", qwen3_next()))
    )
    assert check_pair(oss, read_drafter(folder("eagle3", eagle3())), 3) == ()
    assert check_pair(qwen, read_drafter(folder("dspark", dspark())), 7) == ()
    assert check_pair(following, read_drafter(folder("dense", qwen3_dense())), 20) == ()
    assert check_pair(following, read_mtp(str(tmp_path / "next")), 3) == ()


@pytest.mark.parametrize(
    ("drafter", "changes", "tokens", "reason"),
    [
        (dspark, {"vocab_size": 151936, "mask_token_id": 1}, 7, "vocabulary of 151936"),
        (dspark, {"mask_token_id": 248320}, 7, "mask token 248320 .* outside its vocabulary"),
        (dspark, {"target_layer_ids": (40,)}, 7, r"target layers \[40\]"),
        (dspark, {"target_hidden_size": 5120}, 7, "hidden states of 5120"),
        (dspark, {}, 8, r"at most 7 \(block_size 7\)"),
        (eagle3, {"target_hidden_size": 2048, "target_layer_ids": (40,)}, 3, r"target layers \[40\], .* 0 to 39"),
        (eagle3, {"vocab_size": 248320}, 3, "hidden states of 2880"),
        (qwen3_dense, {}, 3, "vocabulary of 151936"),
        (qwen3_dense, {"vocab_size": 248320}, 0, "num_speculative_tokens is 0"),
    ],
)
def test_a_mismatch_of_another_method_is_one_problem(
    tmp_path: Path, drafter: Any, changes: dict[str, Any], tokens: int, reason: str
) -> None:
    target = read_target(write_checkpoint(tmp_path / "target", qwen3_5()))
    facts = read_drafter(write_checkpoint(tmp_path / "draft", drafter()))
    if drafter is eagle3:
        changes = {"vocab_size": 248320} | changes
    (problem,) = check_pair(target, replace(facts, **changes), tokens)
    assert re.search(reason, problem.reason)


def test_a_dspark_drafter_may_know_more_tokens_than_its_target(tmp_path: Path) -> None:
    target = read_target(write_checkpoint(tmp_path / "target", qwen3_5()))
    config = dspark(vocab_size=248321, mask_token_id=248320)
    assert check_pair(target, read_drafter(write_checkpoint(tmp_path / "draft", config)), 7) == ()


def test_several_mtp_modules_predict_in_turn(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, qwen3_next(num_nextn_predict_layers=2))
    target, modules = read_target(folder), read_mtp(folder)
    assert speculative_tokens(None, modules) == 2
    assert [k for k in range(1, 7) if not check_pair(target, modules, k)] == [1, 2, 4, 6]


@pytest.mark.parametrize("config", [granite_hybrid(), falcon_h1()])
def test_families_without_hidden_states_for_a_drafter_are_refused_one(tmp_path: Path, config: Json) -> None:
    target = read_target(write_checkpoint(tmp_path / "target", config))
    facts = read_drafter(write_checkpoint(tmp_path / "draft", qwen3_dense(vocab_size=target.vocab_size)))
    (problem,) = check_pair(target, facts, 3)
    assert target.family in problem.reason and problem.remedy == "Give no drafter"


def test_without_a_k_of_its_own_a_drafter_must_be_given_one(tmp_path: Path) -> None:
    facts = read_drafter(write_checkpoint(tmp_path / "eagle3", eagle3()))
    with pytest.raises(FactsError, match="num_speculative_tokens is not set"):
        speculative_tokens(None, facts)
    assert speculative_tokens(3, facts) == 3
    assert speculative_tokens(None, None) == 0
    assert speculative_tokens(None, read_drafter(write_checkpoint(tmp_path / "dflash", dflash()))) == 15
