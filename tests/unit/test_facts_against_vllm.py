"""What the readers say against what vLLM's and transformers' own code says of the same config.json."""

import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hybrid_serve.facts.checkpoint import read_drafter, read_target
from hybrid_serve.facts.errors import FactsError
from hybrid_serve.facts.families import DRAFTERS, NOT_PLANNED, TARGETS
from hybrid_serve.facts.families.dflash import DFLASH
from hybrid_serve.facts.families.eagle3 import EAGLE3
from hybrid_serve.plan.buckets import state_bytes
from tests.unit.facts_checkpoints import dflash, qwen3_5, qwen3_next, without, write_checkpoint
from tests.unit.family_configs import falcon_h1, granite_hybrid, nemotron_h

pytestmark = pytest.mark.contract
pytest.importorskip("vllm")

ABSENT = object()
MIXED = dflash()["layer_types"]


def changed(config: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """`config` with fields set, or removed where ABSENT."""
    gone = [name for name, value in fields.items() if value is ABSENT]
    return without(config | {name: value for name, value in fields.items() if value is not ABSENT}, *gone)


def test_windows_of_every_kind_of_dflash_config_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import vllm.model_executor.models.qwen3_dflash as qwen3_dflash
    from transformers import AutoConfig

    monkeypatch.setattr(qwen3_dflash, "get_current_vllm_config", lambda: SimpleNamespace(use_v2_model_runner=True))

    def of_vllm(folder: str) -> list[int | None] | None:
        config = AutoConfig.from_pretrained(folder)
        try:
            return [qwen3_dflash._resolve_layer_attention(config, i)[0] for i in range(config.num_hidden_layers)]
        except ValueError:
            return None

    def of_facts(folder: str) -> list[int | None] | None:
        try:
            buckets = read_drafter(folder).layers.attention
        except FactsError:
            return None
        return [bucket.window for bucket in buckets for _ in range(bucket.count)]

    kinds = itertools.product(
        [ABSENT, ["full_attention"] * 6, MIXED, ["sliding_attention"] * 6],
        [True, False, ABSENT],
        [4096, None, ABSENT],
        [6, 3, 28],
        [True, ABSENT],
        [2048, ABSENT],
    )
    for types, use, window, max_layers, use_swa, swa_window in kinds:
        section = changed(dflash()["dflash_config"], use_swa=use_swa, swa_window_size=swa_window)
        config = changed(
            dflash(dflash_config=section),
            layer_types=types,
            use_sliding_window=use,
            sliding_window=window,
            max_window_layers=max_layers,
        )
        folder = write_checkpoint(tmp_path, config)
        theirs, ours = of_vllm(folder), of_facts(folder)
        assert sorted(ours or [], key=str) == sorted(theirs or [], key=str), config
        assert (ours is None) == (theirs is None), config


@pytest.mark.parametrize("field", ["num_key_value_heads", "head_dim"])
@pytest.mark.parametrize("value", [ABSENT, None, 4])
def test_heads_that_a_drafter_leaves_out_agree(tmp_path: Path, field: str, value: object) -> None:
    from transformers import AutoConfig

    if (field, value) == ("head_dim", None):
        pytest.skip("transformers refuses it")
    folder = write_checkpoint(tmp_path, changed(dflash(), **{field: value}))
    config, bucket = AutoConfig.from_pretrained(folder), read_drafter(folder).layers.attention[0]
    assert (bucket.kv_heads, bucket.head_dim) == (config.num_key_value_heads, config.head_dim)


def test_the_dflash_architectures_are_those_in_vllms_registry() -> None:
    from vllm.model_executor.models.registry import _SPECULATIVE_DECODING_MODELS as models

    assert set(DFLASH.architectures) == {name for name, (module, _) in models.items() if module == "qwen3_dflash"}


def test_eagle3_architectures_are_those_in_vllms_registry_but_for_p_eagle() -> None:
    from vllm.model_executor.models.registry import _SPECULATIVE_DECODING_MODELS as models

    theirs = {name for name, (module, _) in models.items() if module in ("llama_eagle3", "qwen3_eagle3")}
    assert set(EAGLE3.architectures) == {name for name in theirs if not name.lower().startswith("peagle")}


def test_gdn_and_mamba2_architectures_are_those_in_vllms_registry() -> None:
    from vllm.model_executor.models.registry import _VLLM_MODELS as models

    modules = {"qwen3_5", "qwen3_next", "nemotron_h", "granitemoehybrid", "falcon_h1", "gpt_oss"}
    generating = ("ForCausalLM", "ForConditionalGeneration")
    theirs = {name for name, (module, _) in models.items() if module in modules and name.endswith(generating)}
    assert set(TARGETS) == theirs


def test_what_is_read_or_refused_by_name_exists_in_vllms_registry() -> None:
    from vllm.model_executor.models.registry import _VLLM_MODELS as models

    assert {*DRAFTERS, *NOT_PLANNED} <= models.keys()


@pytest.mark.parametrize(
    ("config", "drafted"),
    [
        (nemotron_h(), 3),
        (nemotron_h(n_groups=1), 0),
        (without(nemotron_h(mamba_n_groups=4, mamba_d_conv=5), "n_groups", "conv_kernel"), 3),
        (granite_hybrid(), 0),
        (granite_hybrid(mamba_d_head="auto"), 0),
        (falcon_h1(), 0),
        (falcon_h1(mamba_d_ssm=None, mamba_n_heads=80, mamba_n_groups=1), 0),
    ],
)
@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_mamba2_states_have_vllms_bytes_on_every_gpu(
    tmp_path: Path, config: dict[str, Any], drafted: int, tp: int
) -> None:
    from math import prod

    from transformers import AutoConfig
    from vllm.model_executor.models.registry import ModelRegistry

    folder = write_checkpoint(tmp_path, config)
    model = ModelRegistry._try_load_model_cls(config["architectures"][0])
    shapes = model.get_mamba_state_shape_from_config(
        SimpleNamespace(
            parallel_config=SimpleNamespace(tensor_parallel_size=tp),
            cache_config=SimpleNamespace(use_replayssm=False),
            model_config=SimpleNamespace(hf_config=AutoConfig.from_pretrained(folder)),
            num_speculative_tokens=drafted,
        )
    )
    (mamba,) = read_target(folder, mamba_ssm_cache_dtype="float32").layers.mamba
    ours = state_bytes(mamba, tensor_parallel_size=tp, num_speculative_tokens=drafted)
    assert ours == 2 * prod(shapes[0]) + 4 * prod(shapes[1])


@pytest.mark.parametrize("architecture", sorted(TARGETS))
def test_families_without_drafters_are_those_vllm_hands_no_hidden_states_of(architecture: str) -> None:
    from vllm.model_executor.models.interfaces import supports_eagle3
    from vllm.model_executor.models.registry import ModelRegistry

    if architecture.startswith("Qwen3_5"):
        pytest.skip("its module imports torchvision")
    model = ModelRegistry._try_load_model_cls(architecture)
    assert bool(TARGETS[architecture].methods) == supports_eagle3(model)


@pytest.mark.parametrize(
    "config",
    [
        qwen3_5(),
        qwen3_5(mamba_ssm_dtype=None),
        qwen3_5(mamba_ssm_dtype="bfloat16"),
        qwen3_5("Qwen3_5ForCausalLM"),
        qwen3_next(),
        qwen3_next(mamba_ssm_dtype="float32"),
        nemotron_h(),
        nemotron_h(mamba_ssm_cache_dtype="bfloat16"),
        without(nemotron_h(), "mamba_ssm_cache_dtype"),
        granite_hybrid(mamba_ssm_cache_dtype="float32"),
        falcon_h1(),
    ],
)
@pytest.mark.parametrize("asked", ["auto", "float32", "float16"])
def test_the_state_dtype_agrees(tmp_path: Path, config: dict[str, Any], asked: str) -> None:
    """vLLM's config hook of the architecture, then its state dtype calculator; the CPU's further rule is left out."""
    import torch
    from vllm.model_executor.layers.mamba.mamba_utils import MambaStateDtypeCalculator
    from vllm.model_executor.models.config import MODELS_CONFIG_MAP

    architecture = config["architectures"][0]
    text = SimpleNamespace(**config.get("text_config", config), rope_parameters=None)
    cache = SimpleNamespace(mamba_ssm_cache_dtype=asked)
    model = SimpleNamespace(hf_text_config=text, hf_config=text)
    hook = MODELS_CONFIG_MAP.get(architecture)
    if hook is not None:
        hook.verify_and_update_config(SimpleNamespace(cache_config=cache, model_config=model))
    theirs = MambaStateDtypeCalculator.gated_delta_net_state_dtype(torch.bfloat16, "auto", cache.mamba_ssm_cache_dtype)
    (mamba,) = read_target(write_checkpoint(tmp_path, config), mamba_ssm_cache_dtype=asked).layers.mamba
    names = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}
    assert (mamba.conv_dtype, mamba.ssm_dtype) == tuple(names[dtype] for dtype in theirs)


@pytest.mark.parametrize("config", [qwen3_5(), qwen3_5("Qwen3_5ForConditionalGeneration"), qwen3_next()])
@pytest.mark.parametrize("types", [ABSENT, "kept"])
@pytest.mark.parametrize("interval", [ABSENT, 2, 4])
def test_layer_types_agree(tmp_path: Path, config: dict[str, Any], types: object, interval: object) -> None:
    from transformers import AutoConfig

    text = config.get("text_config", config)
    fields = {"full_attention_interval": interval} | ({} if types == "kept" else {"layer_types": ABSENT})
    text = changed(text, **fields)
    config = config | {"text_config": text} if "text_config" in config else text
    if config["architectures"][0] == "Qwen3_5ForConditionalGeneration":
        config["model_type"] = "qwen3_5"
        config["text_config"] = text | {"model_type": "qwen3_5_text"}
    folder = write_checkpoint(tmp_path, config)
    theirs = AutoConfig.from_pretrained(folder).get_text_config().layer_types
    layers = read_target(folder).layers
    assert (layers.mamba[0].count, layers.attention[0].count) == (
        theirs.count("linear_attention"),
        theirs.count("full_attention"),
    )
