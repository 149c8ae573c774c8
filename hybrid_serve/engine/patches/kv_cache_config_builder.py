"""Patch for vLLM 0.33: the platform in force names our KV cache config builder where a plan is in force.

vLLM 0.33 asks its platform for a `KVCacheConfigBuilder` (`Platform.get_kv_cache_config_builder_cls`), so no grouping
function is replaced: only that method, on the class of the platform that vLLM chose. An entry point in
`vllm.platform_plugins` that returns a subclass of it would own the method without a patch, but is not sound: vLLM looks
at no such plugin when VLLM_TARGET_DEVICE is `cpu`, and it refuses to start, with or without a plan, where a second
platform plugin is installed.

Remove when vLLM lets a general plugin register a builder.
"""

from typing import Any

from hybrid_serve.engine.additional import plan_in
from hybrid_serve.engine.orphan import end_with_parent

_MARK = "__hybrid_serve_original__"

BUILDER = "hybrid_serve.engine.planned_builder.PlannedKVCacheConfigBuilder"
DEFAULT_BUILDER = "vllm.v1.core.kv_cache_planning.DefaultKVCacheConfigBuilder"


class BuilderConflictError(RuntimeError):
    """The platform places the KV cache in a way of its own, which a plan knows nothing of."""


def install() -> bool:
    """Patch this process. Idempotent; False if it was in place already."""
    if installed():
        return False
    platform = _platform()
    original = platform.get_kv_cache_config_builder_cls

    def get_kv_cache_config_builder_cls(cls: Any, vllm_config: Any) -> str:
        named = str(original(vllm_config))
        plan = plan_in(vllm_config.additional_config)
        if plan is not None:
            end_with_parent()
        if plan is None or plan.policy == "stock":
            return named
        if named != DEFAULT_BUILDER:
            raise BuilderConflictError(
                f"KV plan {plan.plan_id} cannot be applied: {cls.__name__} has a KV cache config builder of its own "
                f"({named}), and plans are made for vLLM's ({DEFAULT_BUILDER}); run without a plan on this platform"
            )
        return BUILDER

    setattr(get_kv_cache_config_builder_cls, _MARK, original)
    platform.get_kv_cache_config_builder_cls = classmethod(get_kv_cache_config_builder_cls)
    return True


def installed() -> bool:
    """Whether this process is patched."""
    return hasattr(_platform().get_kv_cache_config_builder_cls, _MARK)


def _platform() -> Any:
    from vllm.platforms import current_platform

    return type(current_platform)
