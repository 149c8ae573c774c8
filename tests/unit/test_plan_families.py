"""`hybrid-serve plan` for every family and drafting method, from nothing but config.json files."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from deployments.config import AppConfig
from deployments.pair import engine_settings, read_pair
from deployments.sources import resolve_sources
from hybrid_serve.cli import main
from hybrid_serve.facts.assemble import plan_inputs
from hybrid_serve.facts.capabilities import capabilities
from hybrid_serve.facts.checkpoint import read_target
from hybrid_serve.facts.device import DeviceFacts
from hybrid_serve.facts.errors import FactsError
from hybrid_serve.plan.decide import decide
from hybrid_serve.plan.stock import stock
from hybrid_serve.plan.verdict import Impossible
from tests.cases import case_named, inputs_of, with_settings
from tests.unit.facts_checkpoints import Json, qwen3_5, qwen3_next, write_checkpoint
from tests.unit.family_configs import dspark, eagle3, falcon_h1, gpt_oss, granite_hybrid, nemotron_h, qwen3_dense

ASKED = ["--kv-memory", "20GiB", "--json"]


@pytest.mark.parametrize(
    ("target", "drafter", "k", "owners"),
    [
        (nemotron_h(), "none", None, {"target"}),
        (nemotron_h(num_nextn_predict_layers=1), "mtp", 3, {"target", "drafter"}),
        (granite_hybrid(), "none", None, {"target"}),
        (falcon_h1(), "none", None, {"target"}),
        (gpt_oss(), eagle3(), 3, {"target", "drafter"}),
        (qwen3_5(), "mtp", None, {"target", "drafter"}),
        (qwen3_5(), dspark(num_key_value_heads=8), None, {"target", "drafter"}),
        (qwen3_next(), qwen3_dense(), 4, {"target", "drafter"}),
    ],
    ids=["nemotron-h", "nemotron-h-mtp", "granite", "falcon-h1", "gpt-oss-eagle3", "mtp", "dspark", "dense"],
)
def test_each_family_and_method_is_planned_from_its_config(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    target: Json,
    drafter: Json | str,
    k: int | None,
    owners: set[str],
) -> None:
    source = drafter if isinstance(drafter, str) else write_checkpoint(tmp_path / "draft", drafter)
    arguments = ["--target", write_checkpoint(tmp_path / "target", target), "--drafter", source, *ASKED]
    if k is not None:
        arguments += ["--num-speculative-tokens", str(k)]
    assert main(["plan", *arguments]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert {group["owner"] for group in answer["groups"]} == owners
    assert answer["efficiency"] > 0.9


def test_acceptance_rates_of_a_drafter_without_a_bound_compare_every_k_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = ["--target", write_checkpoint(tmp_path, qwen3_next()), "--drafter", "mtp"]
    assert main(["plan", *pair, *ASKED, "--acceptance", "0.9,0.8,0.7"]) == 0
    assert [row["k"] for row in json.loads(capsys.readouterr().out)["choose_k"]["rows"]] == [1, 2, 3]


def test_a_public_nemotron_config_gets_the_stock_plan_of_its_case(tmp_path: Path) -> None:
    case = inputs_of(case_named("mamba2-no-drafter"), capabilities("0.29.0"))
    target = read_target(write_checkpoint(tmp_path, nemotron_h()))
    device = DeviceFacts(kind="cuda", name="L40S", memory_bytes=48 * 1024**3, sm=case.sm)
    settings = replace(case.settings, kv_dtype="auto", draft_kv_dtype="auto", gdn_prefill_backend="auto")
    inputs = plan_inputs(
        target=target,
        drafter=None,
        settings=settings,
        device=device,
        kv_memory_bytes=case.kv_memory_bytes,
        vllm="0.29.0",
    )
    ours, theirs = stock(inputs), case_named("mamba2-no-drafter")["expected"]["0.29.0"]
    assert not isinstance(ours, Impossible)
    assert ours.plan.kv_tokens == theirs["kv_tokens"]
    assert len(ours.plan.groups) == theirs["group_count"]


@pytest.mark.parametrize(
    ("config", "tp", "starts"),
    [
        (granite_hybrid(), 8, True),
        (falcon_h1(), 2, True),
        (falcon_h1(), 4, False),
        (nemotron_h(n_groups=2), 4, False),
        (nemotron_h(n_groups=1), 4, True),
    ],
    ids=["one-group", "two-on-two", "two-on-four", "nemotron-two-on-four", "nemotron-one-on-four"],
)
def test_mamba2_groups_are_split_evenly_or_there_is_one_that_is_repeated(
    tmp_path: Path, config: Json, tp: int, starts: bool
) -> None:
    case = inputs_of(case_named("mamba2-no-drafter"), capabilities("0.29.0"))
    target = read_target(write_checkpoint(tmp_path, config))
    inputs = replace(case, target=target.layers, kv_memory_bytes=64 * 1024**3)
    inputs = with_settings(inputs, tensor_parallel_size=tp)
    chosen = decide(inputs).chosen
    assert isinstance(chosen, Impossible) != starts
    if isinstance(chosen, Impossible):
        assert f"2 groups and {target.layers.mamba[0].num_v_heads} heads" in chosen.reason


def test_a_deployment_refuses_mtp_until_it_can_be_served(tmp_path: Path) -> None:
    target = write_checkpoint(tmp_path, qwen3_next())
    values: dict[str, object] = {"model": {"target": target, "drafter": "mtp"}}
    assert not list(resolve_sources(values, tmp_path))
    with pytest.raises(FactsError, match="not served yet"):
        read_pair(AppConfig.model_validate(values), "cuda")


def test_a_deployment_with_a_drafter_without_a_bound_needs_a_k(tmp_path: Path) -> None:
    model = {
        "target": write_checkpoint(tmp_path / "target", gpt_oss()),
        "drafter": write_checkpoint(tmp_path / "draft", eagle3()),
    }
    config = AppConfig(model=model)
    with pytest.raises(FactsError, match="num_speculative_tokens is not set"):
        engine_settings(config, read_pair(config, "cuda"))
    config = AppConfig(model=model, engine={"num_speculative_tokens": 3})
    assert engine_settings(config, read_pair(config, "cuda")).num_speculative_tokens == 3
