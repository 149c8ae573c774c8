"""The installed vLLM's own planning functions, fed with specs made from planner inputs."""

from types import SimpleNamespace
from typing import Any

import torch
from vllm.v1.core import kv_cache_utils
from vllm.v1.kv_cache_interface import FullAttentionSpec, MambaSpec, SlidingWindowSpec
from vllm.v1.kv_cache_layout import KVCacheLayout

from hybrid_serve.plan.buckets import AttentionBucket, MambaBucket
from hybrid_serve.plan.capacity import in_flight_tokens
from hybrid_serve.plan.inputs import PlanInputs
from hybrid_serve.plan.kv_plan import KVPlan
from hybrid_serve.plan.stock import LayerSpec, layer_specs

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16, "fp8": torch.uint8}


def vllm_config(inputs: PlanInputs, *, additional_config: dict[str, Any] | None = None, layout: str = "LBHNC") -> Any:
    """What vLLM's planning functions read of a VllmConfig."""
    drafting = SimpleNamespace(use_eagle=lambda: True, use_multi_module_mtp=lambda: False, num_speculative_tokens=0)
    return SimpleNamespace(
        additional_config=additional_config or {},
        model_config=SimpleNamespace(
            max_model_len=inputs.settings.max_model_len,
            original_max_model_len=inputs.settings.max_model_len,
            hf_config=SimpleNamespace(model_type="qwen3_next"),
        ),
        parallel_config=SimpleNamespace(decode_context_parallel_size=1, pipeline_parallel_size=1),
        scheduler_config=SimpleNamespace(disable_hybrid_kv_cache_manager=False),
        speculative_config=drafting if inputs.drafter else None,
        max_in_flight_tokens=in_flight_tokens(inputs),
        cache_config=SimpleNamespace(
            mamba_cache_mode="align" if inputs.settings.prefix_caching else "none",
            num_gpu_blocks_override=None,
            prefix_cache_retention_interval=None,
            get_resolved_kv_cache_layout=lambda: KVCacheLayout[layout],
        ),
    )


def real_specs(inputs: PlanInputs) -> dict[str, Any]:
    """One real KVCacheSpec a layer, in vLLM's order of registration: the target's layers, then the drafter's."""
    specs: dict[str, Any] = {}
    for spec in layer_specs(inputs):
        for _ in range(spec.bucket.layers):
            specs[f"model.layers.{len(specs)}.attn"] = _real(spec, inputs)
    return specs


def _real(spec: LayerSpec, inputs: PlanInputs) -> Any:
    if isinstance(spec.bucket, MambaBucket):
        return MambaSpec(
            block_size=spec.block_size,
            shapes=((spec.bucket.state_bytes,),),
            dtypes=(torch.int8,),
            page_size_padded=spec.page if spec.page != spec.bucket.state_bytes else None,
            mamba_cache_mode="align" if inputs.settings.prefix_caching else "none",
            num_speculative_blocks=inputs.settings.num_speculative_tokens,
        )
    assert isinstance(spec.bucket, AttentionBucket)
    heads, head_dim, dtype = spec.bucket.shape
    common = {"block_size": spec.block_size, "num_kv_heads": heads, "head_size": head_dim, "dtype": DTYPES[dtype]}
    if spec.bucket.kind == "sliding":
        return SlidingWindowSpec(sliding_window=spec.bucket.window, **common)
    return FullAttentionSpec(**common)


def kv_cache_config(inputs: PlanInputs, plan: KVPlan | None = None) -> tuple[Any, int, float]:
    """(KVCacheConfig, KV cache size in tokens, maximum concurrency): what an engine core would get.

    With a plan, through the installed patch; raises what vLLM raises.
    """
    from hybrid_serve.engine.additional import entry

    layout = (plan.kv_cache_layout if plan else inputs.settings.kv_cache_layout) or "LBHNC"
    config = vllm_config(inputs, additional_config=entry(plan) if plan else None, layout=layout)
    (result,) = kv_cache_utils.get_kv_cache_configs(config, [real_specs(inputs)], [inputs.kv_memory_bytes])
    tokens, concurrency = kv_cache_utils.get_kv_cache_capacity(config, result)
    return result, tokens, concurrency
