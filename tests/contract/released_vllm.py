"""One vLLM release's own answer to a planning problem. A program: it runs beside that release, not beside ours.

    python released_vllm.py TREE        TREE has the release's `vllm` package; it goes first on sys.path

Reads one JSON problem a line, writes one JSON answer a line, in the words of tests/data/README.md. Everything that
decides is the release's own code: block alignment, the specs of its layers, unification, grouping, the admission check,
the choice of model runner and its wish for one drafter group. What is ours are the objects these functions read: layers
without weights, a configuration without checkpoints, a GPU that is only a compute capability.
"""

import contextlib
import importlib
import json
import os
import sys
import typing
from types import SimpleNamespace
from unittest.mock import MagicMock

TREE = sys.argv[1]
REPLIES = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # vLLM logs to standard output
sys.path.insert(0, TREE)
for absent in ("gguf", "gguf.constants", "gguf.quants"):  # 0.20.1 imports them with its configuration
    sys.modules.setdefault(absent, MagicMock())

import torch  # noqa: E402
import vllm  # noqa: E402
import vllm.config.vllm as vllm_config_module  # noqa: E402
from vllm import envs, platforms  # noqa: E402
from vllm.config.speculative import SpeculativeConfig, SpeculativeMethod  # noqa: E402
from vllm.config.vllm import VllmConfig  # noqa: E402
from vllm.model_executor.layers.attention.attention import Attention  # noqa: E402
from vllm.model_executor.layers.mamba.abstract import MambaBase  # noqa: E402
from vllm.model_executor.layers.mamba.mamba_mixer2 import MambaMixer2  # noqa: E402
from vllm.model_executor.layers.mamba.mamba_utils import MambaStateShapeCalculator  # noqa: E402
from vllm.model_executor.models import ModelRegistry  # noqa: E402
from vllm.platforms.cpu import CpuPlatform  # noqa: E402
from vllm.platforms.interface import DeviceCapability, Platform, PlatformEnum  # noqa: E402
from vllm.v1.attention.backend import AttentionType  # noqa: E402
from vllm.v1.attention.backends import cpu_attn, fa_utils, flash_attn, triton_attn  # noqa: E402
from vllm.v1.core import kv_cache_utils  # noqa: E402
from vllm.v1.spec_decode.llm_base_proposer import SpecDecodeBaseProposer  # noqa: E402

assert vllm.__file__.startswith(TREE), f"vllm was imported from {vllm.__file__}, not from {TREE}"


def optional(name):
    """A module that only some releases have; None where it is not there."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and name.startswith(error.name):
            return None
        raise


planning = optional("vllm.v1.core.kv_cache_planning")
gpu_specs = optional("vllm.v1.worker.gpu.attn_utils")
qwen_gdn = optional("vllm.model_executor.layers.mamba.gdn.qwen_gdn_linear_attn")
dflash = optional("vllm.model_executor.models.qwen3_dflash")
layouts = optional("vllm.v1.attention.backends.utils")

TORCH = {"bf16": torch.bfloat16, "fp32": torch.float32, "fp16": torch.float16, "fp8": torch.uint8}
TORCH |= {"int8_per_token_head": torch.int8, "fp8_per_token_head": torch.uint8}
MODEL_DTYPE = "bf16"
EAGLE_LIKE = ("eagle", "eagle3", "mtp", "dflash", "dspark")


class SimulatedGPU(Platform):
    """A CUDA GPU of which only the compute capability is known."""

    _enum = PlatformEnum.CUDA
    device_name = device_type = "cuda"
    sm = 90

    @classmethod
    def get_device_capability(cls, device_id=0):
        return DeviceCapability(cls.sm // 10, cls.sm % 10)

    @classmethod
    def get_cuda_runtime_major(cls):
        return 13


@contextlib.contextmanager
def current_config(config, *_, **__):
    """What vLLM's `set_current_vllm_config` does, without its bookkeeping of compiled operators."""
    before = vllm_config_module._current_vllm_config
    vllm_config_module._current_vllm_config = config
    try:
        yield
    finally:
        vllm_config_module._current_vllm_config = before


def simulate(device, sm):
    platforms.current_platform.__class__ = CpuPlatform if device == "cpu" else SimulatedGPU
    SimulatedGPU.sm = sm or 90
    version = {9: 3, 10: 4}.get(SimulatedGPU.sm // 10, 2)
    for module in (flash_attn, fa_utils):
        module.get_flash_attn_version = lambda *_, **__: version
    vllm_config_module.HAS_TRITON = device == "cuda"
    vllm_config_module.set_current_vllm_config = current_config
    if gpu_specs is not None and hasattr(gpu_specs, "set_current_vllm_config"):
        gpu_specs.set_current_vllm_config = current_config


def configuration(case):
    """A real VllmConfig, never validated, with the parts that planning reads."""
    align = case["prefix_caching"]
    config = VllmConfig.__new__(VllmConfig)
    target_attention = [row for row in case["target"] if row["kind"] in ("full", "sliding")]
    tp = case["tp"]
    config.__dict__.update(
        cache_config=cache_configuration(case),
        model_config=SimpleNamespace(
            dtype=TORCH[MODEL_DTYPE], is_hybrid=len(target_attention) < len(case["target"]), use_mla=False,
            max_model_len=case["max_model_len"], original_max_model_len=case["max_model_len"],
            get_num_kv_heads=lambda _: max(1, target_attention[0]["kv_heads"] // tp),
            get_head_size=lambda: target_attention[0]["head_dim"],
            architecture="Simulated", architectures=["Simulated"], is_diffusion=False, runner_type="generate",
            is_moe=False, is_attention_free=False, enable_return_routed_experts=False, logits_processors=None,
            enable_prompt_embeds=False, is_mm_prefix_lm=False, rswa_window=None, supports_kv_cache_grouping=False,
            hf_config=SimpleNamespace(model_type="simulated"),
            hf_text_config=SimpleNamespace(
                linear_key_head_dim=next((row["head_k_dim"] for row in case["target"] if row["kind"] == "gdn"), None)
            ),
        ),
        parallel_config=SimpleNamespace(
            tensor_parallel_size=tp, pipeline_parallel_size=1, decode_context_parallel_size=1,
            prefill_context_parallel_size=1, distributed_executor_backend=None, enable_dbo=False,
            enable_elastic_ep=False, use_ubatching=False,
        ),
        scheduler_config=SimpleNamespace(
            max_num_batched_tokens=case["max_num_batched_tokens"], long_prefill_token_threshold=0,
            disable_chunked_mm_input=False, disable_hybrid_kv_cache_manager=False, async_scheduling=case["async"],
        ),
        speculative_config=speculation(case),
        compilation_config=SimpleNamespace(
            static_forward_context={}, mode=None, pass_config=SimpleNamespace(enable_sp=False)
        ),
        attention_config=SimpleNamespace(hisparse_config=None),
        additional_config={"gdn_prefill_backend": case["gdn_prefill_backend"]},
        kv_transfer_config=None, ec_transfer_config=None, watermark_config=None,
    )  # fmt: skip
    layers = config.compilation_config.static_forward_context
    for owner in ("target", "drafter"):
        for row in case[owner] or ():
            for _ in range(row["count"]):
                layers[f"{owner}.{len(layers)}"] = layer(row, owner, case, config)
    if align:
        config.cache_config.mamba_block_size = None
    return config


def cache_configuration(case):
    config = SimpleNamespace(
        block_size=case["block_size"] or (128 if case["device"] == "cpu" else 16),
        user_specified_block_size=case["block_size"] is not None,
        cache_dtype="auto" if case["kv_dtype"] in ("auto", MODEL_DTYPE) else case["kv_dtype"],
        mamba_block_size=case["max_model_len"], user_specified_mamba_block_size=False,
        mamba_cache_mode="align" if case["prefix_caching"] else "none", mamba_page_size_padded=None,
        mamba_ssm_cache_dtype="auto", mamba_cache_dtype="auto", use_replayssm=False, use_kda_recoverssm=False,
        kv_cache_dtype_skip_layers=[], skip_page_size_padded=None, kv_sharing_fast_prefill=False,
        num_gpu_blocks_override=None, prefix_cache_retention_interval=None, prefix_match_unit=None,
        kv_cache_layout=None,
    )  # fmt: skip
    config.get_resolved_kv_cache_layout = lambda: layouts._layout_from_name(config.kv_cache_layout)
    return config


def speculation(case):
    method = case["method"]
    if case["drafter"] is None and not case["k"]:
        return None
    kinds = [row["kind"] for row in case["drafter"] or () for _ in range(row["count"])]
    names = {"full": "full_attention", "sliding": "sliding_attention"}
    eagle_like = method in EAGLE_LIKE
    hf = SimpleNamespace(layer_types=[names[kind] for kind in kinds], sliding_window=1, num_hidden_layers=len(kinds))
    return SimpleNamespace(
        method=method, num_speculative_tokens=case["k"], parallel_drafting=method in ("dflash", "dspark"),
        use_eagle=lambda: eagle_like, use_eagle_block_drop=lambda: eagle_like, use_multi_module_mtp=lambda: False,
        use_heterogeneous_vocab=False, draft_model_config=SimpleNamespace(hf_config=hf, architectures=[]),
    )  # fmt: skip


def layer(row, owner, case, config):
    """A layer without weights, of the release's own class."""
    if row["kind"] in ("gdn", "mamba2"):
        return mamba_layer(row, case, config)
    made = Attention.__new__(Attention)
    dtype = drafter_dtype(case) if owner == "drafter" else resolved(case["kv_dtype"])
    per_token_head = dtype.endswith("per_token_head")
    if case["device"] == "cpu":
        backend = cpu_attn.CPUAttentionBackend
    else:
        backend = triton_attn.TritonAttentionBackend if per_token_head else flash_attn.FlashAttentionBackend
    made.__dict__.update(
        num_kv_heads=max(1, row["kv_heads"] // case["tp"]), head_size=row["head_dim"], head_size_v=row["head_dim"],
        kv_cache_torch_dtype=TORCH[dtype], kv_cache_dtype="auto" if dtype == MODEL_DTYPE else dtype,
        sliding_window=row["window"] if slides(row, owner, case) else None, attn_type=AttentionType.DECODER,
        attn_backend=backend, get_attn_backend=lambda: backend, kv_sharing_target_layer_name=None,
        is_draft_layer=owner == "drafter",
    )  # fmt: skip
    return made


def slides(row, owner, case):
    """0.20.1's DFlash attention takes no window, so its sliding layers are full ones."""
    windowless = dflash is not None and not hasattr(dflash, "_resolve_layer_attention")
    return row["kind"] == "sliding" and not (owner == "drafter" and case["method"] == "dflash" and windowless)


def resolved(dtype):
    return MODEL_DTYPE if dtype == "auto" else dtype


def drafter_dtype(case):
    """0.20.1 has no option for it, and builds DFlash layers without its cache configuration."""
    if "kv_cache_dtype" in SpeculativeConfig.__annotations__:
        return resolved(case["draft_kv_dtype"])
    return MODEL_DTYPE if case["method"] == "dflash" else resolved(case["kv_dtype"])


def state_shape(row, case):
    if row["kind"] == "gdn":
        return MambaStateShapeCalculator.gated_delta_net_state_shape(
            case["tp"], row["num_k_heads"], row["num_v_heads"], row["head_k_dim"], row["head_v_dim"],
            row["conv_kernel"], case["k"],
        )  # fmt: skip
    return MambaStateShapeCalculator.mamba2_state_shape(
        tp_world_size=case["tp"], intermediate_size=row["num_v_heads"] * row["head_v_dim"],
        n_groups=row["num_k_heads"], num_heads=row["num_v_heads"], head_dim=row["head_v_dim"],
        state_size=row["head_k_dim"], conv_kernel=row["conv_kernel"], num_spec=case["k"],
    )  # fmt: skip


def mamba_layer(row, case, config):
    gdn_class = next((getattr(qwen_gdn, name) for name in dir(qwen_gdn) if name == "QwenGatedDeltaNetAttention"), None)
    base = (gdn_class or MambaBase) if row["kind"] == "gdn" else MambaMixer2

    class Simulated(base):
        mamba_type = "unused"
        is_kv_cache_tp_replicated = False

        def __init__(self):
            torch.nn.Module.__init__(self) if issubclass(base, torch.nn.Module) else None

        def get_state_shape(self):
            return state_shape(row, case)

        def get_state_dtype(self):
            return (torch.bfloat16, TORCH[row["ssm_dtype"]])

        def get_attn_backend(self):
            return SimpleNamespace(is_ssm=lambda: True)

    made = Simulated()
    made.__dict__.update(vllm_config=config, is_draft_layer=False, kv_sharing_target_layer_name=None)
    if row["kind"] == "gdn" and hasattr(qwen_gdn, "FLASHINFER_GDN_CHECKPOINT_ALIGNMENT"):
        _, backend = qwen_gdn._resolve_gdn_prefill_backend(config)
        checkpoints = case["prefix_caching"] and backend == "flashinfer"
        alignment = qwen_gdn.FLASHINFER_GDN_CHECKPOINT_ALIGNMENT if checkpoints else None
        made.__dict__.update(_checkpoint_alignment=alignment)
    return made


def rejected(case):
    known = set(flatten(SpeculativeMethod))
    if case["method"] not in known and (case["drafter"] or case["k"]):
        return f"speculative_config.method={case['method']!r} is unknown to this version"
    given = case["draft_kv_dtype"]
    has_option = "kv_cache_dtype" in SpeculativeConfig.__annotations__
    if case["drafter"] is None or has_option or given in ("auto", case["kv_dtype"]):
        return None
    if resolved(given) == drafter_dtype(case):
        return None
    return "this version has no speculative_config.kv_cache_dtype"


def flatten(literal):
    for value in typing.get_args(literal):
        yield from [value] if isinstance(value, str) else flatten(value)


def layer_specs(config):
    """Specs as the worker collects them, with no configuration current."""
    if gpu_specs is not None and hasattr(gpu_specs, "get_kv_cache_spec"):
        return gpu_specs.get_kv_cache_spec(config)
    layers = config.compilation_config.static_forward_context
    return {name: made.get_kv_cache_spec(config) for name, made in layers.items()}


def resolve_layout(config, specs):
    """From 0.29 the engine core resolves one layout; before, a backend asks for `NHD` or `HND`."""
    if layouts is None or not hasattr(layouts, "resolve_kv_cache_layout"):
        return
    made = config.compilation_config.static_forward_context.values()
    backends = {made_one.get_attn_backend(): None for made_one in made if isinstance(made_one, Attention)}
    supported = [one.name for one in layouts.get_supported_kv_cache_layouts(list(backends))]
    layouts.resolve_kv_cache_layout(config, [supported], specs.values())


def on_v1_runner(config):
    return not getattr(config, "use_v2_model_runner", False)


def build_drafter(config, case):
    """What a DFlash drafter's layers check while they are built."""
    if case["method"] != "dflash" or not case["drafter"] or not hasattr(dflash, "_resolve_layer_attention"):
        return
    for module in (dflash, vllm_config_module):
        module.get_current_vllm_config = lambda: config
    dflash._resolve_layer_attention(config.speculative_config.draft_model_config.hf_config, 0)


def answer(case):
    """In the order in which an engine would come to each step; a figure that was not reached is absent."""
    found = {}
    try:
        if reason := rejected(case):
            return {"outcome": "Rejected", "message": reason}
        simulate(case["device"], case["sm"])
        os.environ.pop("VLLM_KV_CACHE_LAYOUT", None)
        if case["layout"] is not None:
            os.environ["VLLM_KV_CACHE_LAYOUT"] = case["layout"]
            assert envs.VLLM_KV_CACHE_LAYOUT  # reading it is what validates it
        config = configuration(case)
        state_of(case, config)
        if not on_v1_runner(config):
            config._validate_v2_model_runner()
        build_drafter(config, case)
        platform = CpuPlatform if case["device"] == "cpu" else SimulatedGPU
        platform.update_block_size_for_backend(config)
        found["block_size"] = config.cache_config.block_size
        specs = layer_specs(config)
        resolve_layout(config, specs)
        found |= figures(config, specs, case)
        config.cache_config.block_size = min(group.kv_cache_spec.block_size for group in found["kv_cache_groups"])
        config.validate_block_size()
        drafting = [name for name in specs if name.startswith("drafter")]
        if drafting and on_v1_runner(config):
            proposer = SimpleNamespace(_draft_attn_layer_names=drafting)
            grouped = SimpleNamespace(kv_cache_groups=found["kv_cache_groups"])
            SpecDecodeBaseProposer.validate_same_kv_cache_group(proposer, grouped)
        found["outcome"] = "ok"
    except Exception as error:
        found |= {"outcome": type(error).__name__, "message": str(error)}
    found.pop("kv_cache_groups", None)
    return found


def state_of(case, config):
    """What alignment asks the model's class for."""
    row = next((row for row in case["target"] if row["kind"] in ("gdn", "mamba2")), None)
    model = SimpleNamespace(
        get_mamba_state_shape_from_config=lambda _: state_shape(row, case) if row else (),
        get_mamba_state_dtype_from_config=lambda _: (torch.bfloat16, TORCH[row["ssm_dtype"]]) if row else (),
    )
    type(ModelRegistry).resolve_model_cls = lambda *_, **__: (model, "Simulated")


def figures(config, specs, case):
    memory = [case["kv_memory_bytes"]]
    if planning is not None:
        groups = planning.get_global_kv_cache_groups(config, [specs])
        (made,) = planning.get_kv_cache_configs(config, [specs], memory, groups)
    else:
        (made,) = kv_cache_utils.get_kv_cache_configs(config, [specs], memory)
    if hasattr(kv_cache_utils, "get_kv_cache_capacity"):
        tokens, concurrency = kv_cache_utils.get_kv_cache_capacity(config, made)
    else:
        concurrency = kv_cache_utils.get_max_concurrency_for_kv_cache_config(config, made)
        tokens = int(concurrency * case["max_model_len"])
    return {
        "groups": [row_of(group) for group in made.kv_cache_groups],
        "num_blocks": made.num_blocks,
        "kv_tokens": tokens,
        "max_concurrency": concurrency,
        "kv_cache_groups": made.kv_cache_groups,
    }


def row_of(group):
    spec = group.kv_cache_spec
    first = next(iter(getattr(spec, "kv_cache_specs", {"": spec}).values()))
    return [len(group.layer_names), type(first).__name__, spec.block_size, spec.page_size_bytes]


if __name__ == "__main__":
    print(json.dumps({"ready": vllm.__file__}), file=REPLIES, flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), file=REPLIES, flush=True)
