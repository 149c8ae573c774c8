"""From `auto`, `stock` or a given plan to the plan that an engine's processes get: in the process that starts it."""

import logging
import os
from dataclasses import replace
from typing import Any

from hybrid_serve.engine.additional import PlanRequest, entry
from hybrid_serve.facts.assemble import plan_inputs
from hybrid_serve.facts.capabilities import capabilities
from hybrid_serve.facts.checkpoint import read_drafter, read_target
from hybrid_serve.facts.device import DeviceFacts
from hybrid_serve.facts.probe import measure_device
from hybrid_serve.plan.decide import decide
from hybrid_serve.plan.inputs import EngineSettings, GDNPrefill, KVDtype
from hybrid_serve.plan.kv_plan import KVPlan
from hybrid_serve.plan.verdict import Impossible

logger = logging.getLogger("vllm.hybrid_serve")

LAYOUT_VARIABLE = "VLLM_KV_CACHE_LAYOUT"
_layout_of_a_plan: str | None = None


def resolve(request: PlanRequest, vllm_config: Any) -> dict[str, Any]:
    """`additional_config` with the plan in it; sets VLLM_KV_CACHE_LAYOUT where the plan needs a layout.

    Raises:
        ValueError: nothing fits, the plan is for another vLLM, or the layout that the environment asks for is not the
            plan's.
    """
    import vllm

    plan = request if isinstance(request, KVPlan) else _plan_here(request, vllm_config)
    check_release(plan, vllm.__version__)
    if plan.kv_cache_layout is not None:
        asked = os.environ.get(LAYOUT_VARIABLE)
        if asked not in (None, "", plan.kv_cache_layout):
            raise ValueError(
                f"KV plan {plan.plan_id} needs {LAYOUT_VARIABLE}={plan.kv_cache_layout}, the environment has {asked}: "
                f"unset it or plan for {asked}"
            )
        if not asked:
            global _layout_of_a_plan
            os.environ[LAYOUT_VARIABLE] = _layout_of_a_plan = plan.kv_cache_layout
    logger.info(
        "hybrid_serve: KV plan %s (%s, %s pages), %d groups, blocks of %d bytes",
        plan.plan_id,
        plan.policy,
        plan.pages,
        len(plan.groups),
        plan.block_bytes,
    )
    return {**vllm_config.additional_config, **entry(plan)}


def take_back_layout() -> None:
    """Unsets the layout that the plan of an earlier engine of this process needed; one that a user set is left."""
    global _layout_of_a_plan
    if _layout_of_a_plan is not None and os.environ.get(LAYOUT_VARIABLE) == _layout_of_a_plan:
        del os.environ[LAYOUT_VARIABLE]
    _layout_of_a_plan = None


def check_release(plan: KVPlan, running: str) -> None:
    """Raises ValueError if the plan is for a vLLM that lays out its KV cache in another way than the running one."""
    planned_for, here = capabilities(plan.vllm), capabilities(running)
    if replace(planned_for, version="", checked_as="") != replace(here, version="", checked_as=""):
        raise ValueError(
            f"KV plan {plan.plan_id} is for vLLM {plan.vllm}, and this is vLLM {running}, which lays out a KV cache in "
            f"another way: plan for vLLM {here.version}"
        )


def _plan_here(policy: str, vllm_config: Any) -> KVPlan:
    import vllm

    model, speculative = vllm_config.model_config, vllm_config.speculative_config
    ssm_dtype = vllm_config.cache_config.mamba_ssm_cache_dtype
    target = read_target(model.model, model.revision, mamba_ssm_cache_dtype=ssm_dtype)
    if speculative is not None and speculative.method == "mtp":
        raise ValueError("no KV plan: the MTP modules of a target are planned for, but not served on a plan yet")
    drafter = read_drafter(speculative.model, speculative.revision) if speculative is not None else None
    device = measure_device()
    decision = decide(
        plan_inputs(
            target=target,
            drafter=drafter,
            settings=settings_of(vllm_config),
            device=device,
            kv_memory_bytes=_kv_memory(vllm_config, device),
            vllm=vllm.__version__.split("+")[0],
        ),
        "stock" if policy == "stock" else "best",
    )
    if isinstance(decision.chosen, Impossible):
        raise ValueError(f"no KV plan: {decision.chosen.reason}; {decision.chosen.remedy}")
    return decision.chosen.plan


def _kv_memory(vllm_config: Any, device: DeviceFacts) -> int:
    """What vLLM was told to use, or a rough share of the device: the layout does not depend on it."""
    explicit = vllm_config.cache_config.kv_cache_memory_bytes
    if explicit:
        return int(explicit)
    return int(device.memory_bytes * vllm_config.cache_config.gpu_memory_utilization)


def settings_of(vllm_config: Any) -> EngineSettings:
    """The planner's settings as vLLM resolved them."""
    cache, scheduler = vllm_config.cache_config, vllm_config.scheduler_config
    speculative = vllm_config.speculative_config
    return EngineSettings(
        tensor_parallel_size=vllm_config.parallel_config.tensor_parallel_size,
        kv_dtype=_kv_dtype(cache.cache_dtype),
        draft_kv_dtype=_kv_dtype(getattr(speculative, "kv_cache_dtype", None) or cache.cache_dtype),
        num_speculative_tokens=vllm_config.num_speculative_tokens,
        max_model_len=vllm_config.model_config.max_model_len,
        max_num_batched_tokens=scheduler.max_num_batched_tokens,
        max_num_seqs=scheduler.max_num_seqs,
        prefix_caching=cache.mamba_cache_mode == "align",
        async_scheduling=bool(scheduler.async_scheduling),
        kv_cache_layout=os.environ.get(LAYOUT_VARIABLE) or None,
        block_size=cache.block_size if cache.user_specified_block_size else None,
        gdn_prefill_backend=_gdn_prefill(vllm_config.additional_config.get("gdn_prefill_backend")),
    )


def _gdn_prefill(backend: str | None) -> GDNPrefill:
    """vLLM's GDN prefill backend in the planner's words: of the named ones only FlashInfer changes the KV cache."""
    if backend is None or backend == "auto":
        return "auto"
    return "flashinfer" if backend == "flashinfer" else "triton"


def _kv_dtype(cache_dtype: str) -> KVDtype:
    """vLLM's cache dtype in the planner's words.

    Raises:
        ValueError: a cache dtype that the planner does not know.
    """
    if cache_dtype == "auto":
        return "auto"
    if cache_dtype.startswith("fp8") and "per_token_head" not in cache_dtype:
        return "fp8"
    if cache_dtype in ("bfloat16", "bf16"):
        return "bf16"
    raise ValueError(f"KV cache dtype {cache_dtype} is not planned for: use auto, bfloat16 or fp8")
