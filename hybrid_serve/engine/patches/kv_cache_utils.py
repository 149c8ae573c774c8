"""Patch for vLLM 0.26 to 0.32: replaces `vllm.v1.core.kv_cache_utils.get_kv_cache_groups`.

That one function decides the groups; the engine core calls it through its module's globals, and a worker imports it
when it profiles CUDA graphs, so replacing the module's attribute reaches both. (0.20 to 0.25 have the same function:
`uniform_pages` serves these, and builds on this patch.)

Remove when every supported vLLM has the `KVCacheConfigBuilder` hook (`kv_cache_config_builder`; 0.33.0 has it).
"""

from typing import Any

from hybrid_serve.engine.additional import plan_in
from hybrid_serve.engine.apply import planned_groups
from hybrid_serve.engine.orphan import end_with_parent

_MARK = "__hybrid_serve_original__"


def install() -> bool:
    """Patch this process. Idempotent; False if it was in place already."""
    from vllm.v1.core import kv_cache_utils
    from vllm.v1.kv_cache_interface import KVCacheGroupSpec

    original = kv_cache_utils.get_kv_cache_groups
    if hasattr(original, _MARK):
        return False

    def get_kv_cache_groups(vllm_config: Any, kv_cache_spec: dict[str, Any]) -> list[Any]:
        plan = plan_in(vllm_config.additional_config)
        if plan is not None:
            end_with_parent()
        if plan is None or plan.policy == "stock":
            return list(original(vllm_config, kv_cache_spec))
        return planned_groups(plan, kv_cache_spec, KVCacheGroupSpec)

    setattr(get_kv_cache_groups, _MARK, original)
    kv_cache_utils.get_kv_cache_groups = get_kv_cache_groups
    return True


def installed() -> bool:
    """Whether this process is patched."""
    from vllm.v1.core import kv_cache_utils

    return hasattr(kv_cache_utils.get_kv_cache_groups, _MARK)
