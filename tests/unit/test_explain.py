"""`explain`: the reasons that stock vLLM's own steps give, in words."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybrid_serve.cli import main
from hybrid_serve.facts.capabilities import CAPABILITIES
from hybrid_serve.plan.explain import explain
from hybrid_serve.plan.inputs import PlanInputs, Workload
from hybrid_serve.plan.verdict import Impossible
from tests.cases import CASES, case_named, inputs_of, with_settings
from tests.strategies import release_problems
from tests.unit.facts_checkpoints import dflash, qwen3_5, write_checkpoint


def seed(version: str = "0.29.0", context: int = 8192) -> PlanInputs:
    inputs = inputs_of(case_named("seed-measured-20g"), CAPABILITIES[version])
    return replace(inputs, workload=Workload(contexts=((context, 1.0),)))


def text_of(inputs: PlanInputs) -> str:
    return "\n".join(explain(inputs).text)


@pytest.mark.parametrize("version", ["0.26.0", "0.29.0", "0.32.0", "0.33.0"])
def test_the_seed_is_padded_because_the_drafter_has_twice_the_bytes_and_one_full_layer(version: str) -> None:
    text = text_of(seed(version))
    for told in (
        "The drafter's 4,096 bytes per token are twice the target's 2,048.",
        "1,120 tokens x 2,048 = 2,293,760 bytes (+0.72 %)",
        "1,120 x 4,096 = 4,587,520",
        "the target's 30 GDN layers are padded from 2,277,376 to 4,587,520 bytes (+101 %)",
        "the rarest layer kind (the drafter's 1 full attention layer), so there are 46 groups of at most 1",
        "holds 1,665,269,760 bytes in 46 groups, 1.69 times the 983,990,272",
        "62% mamba state",
    ):
        assert told in text, told


def test_on_0_20_1_the_seed_ends_in_an_assertion_because_a_state_cannot_grow() -> None:
    text = text_of(seed("0.20.1"))
    for told in (
        "1,120 x 4,096 = 4,587,520",
        "A state has no tokens, so it cannot scale",
        "stays 2,293,760 bytes",
        "`unify_kv_cache_spec_page_size` asserts that the page is 4,587,520 now",
        "bare AssertionError, after all weights are loaded",
        "What to change",
    ):
        assert told in text, told
    assert "padded from" not in text


def test_without_a_drafter_stock_is_fine_and_nothing_is_to_be_changed() -> None:
    text = text_of(with_settings(replace(seed(), drafter=None), num_speculative_tokens=0))
    assert "Stock vLLM is fine here." in text and "There is nothing to change." in text
    assert "ReplaySSM" not in text


def test_where_only_groups_are_to_be_won_stock_is_fine_for_memory() -> None:
    text = text_of(with_settings(seed(), tensor_parallel_size=4))
    assert "the best plan would hold as many. What is left to win is groups" in text and "instead of 46" in text
    assert "twice" not in text


def test_too_little_memory_is_told_with_the_bytes_that_one_request_needs() -> None:
    text = text_of(replace(seed(), kv_memory_bytes=1 << 30))
    assert "one request of 131,072 tokens needs" in text and "lower max_model_len" in text


def test_a_layout_with_blocks_outermost_is_told_by_its_groups_and_its_waste() -> None:
    text = text_of(with_settings(seed(), kv_cache_layout="BLNHC"))
    assert "With blocks outermost (BLNHC)" in text and "Most is wasted on" in text


def test_replayssm_for_gdn_layers_is_marked_as_in_no_release() -> None:
    assert "Not in any vLLM release (looked at: up to 0.33), so an estimate" in text_of(seed())


def test_replayssm_for_mamba2_layers_is_told_from_the_release_that_replays_a_draft() -> None:
    target = seed().target
    mamba2 = replace(
        target, buckets=tuple(replace(b, kind="mamba2") if b in target.mamba else b for b in target.buckets)
    )
    assert "Not in vLLM 0.29.0, but in 0.32" in text_of(replace(seed(), target=mamba2))
    assert "vLLM 0.32.0 has ReplaySSM for mamba2 layers" in text_of(replace(seed("0.32.0"), target=mamba2))


@pytest.mark.parametrize("version", sorted(CAPABILITIES))
def test_every_case_of_the_table_is_explained(version: str) -> None:
    for case in CASES:
        found = explain(inputs_of(case, CAPABILITIES[version]))
        assert not re.search(
            r"None|nan|\{|\}", "\n".join(found.text).replace("""'{"hybrid_serve": {"plan": "auto"}}'""", "")
        )
        if isinstance(found.decision.chosen, Impossible):
            assert found.decision.chosen.remedy in "\n".join(found.text)


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_generated_problems_are_explained_whatever_comes_of_them(data: st.DataObject) -> None:
    inputs = data.draw(release_problems(data.draw(st.sampled_from(sorted(CAPABILITIES)))))
    assert all(explain(inputs).text)


def test_the_command_prints_wrapped_paragraphs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = write_checkpoint(tmp_path / "target", qwen3_5())
    drafter = write_checkpoint(tmp_path / "drafter", dflash())
    asked = ["explain", "--target", target, "--drafter", drafter, "--num-speculative-tokens", "8"]
    assert main([*asked, "--kv-memory", "20GiB", "--max-model-len", "131072", "--context", "8192"]) == 0
    printed = capsys.readouterr().out
    assert "(+101 %)" in printed and max(map(len, printed.splitlines())) <= 100
    assert main([*asked, "--kv-memory", "1GiB", "--max-model-len", "131072"]) == 1
