"""vLLM's default KV cache config builder, with the planned groups. Exists on releases that have builders (0.33)."""

from typing import Any

from vllm.v1.core.kv_cache_planning import DefaultKVCacheConfigBuilder
from vllm.v1.kv_cache_interface import KVCacheGroupSpec

from hybrid_serve.engine.additional import plan_in
from hybrid_serve.engine.apply import planned_groups


class PlannedKVCacheConfigBuilder(DefaultKVCacheConfigBuilder):  # type: ignore[misc]
    """Groups as the plan has them; tensors are placed by vLLM's own code.

    vLLM checks that the groups hold every layer once, and marks the drafter's itself.
    """

    def get_kv_cache_groups(self, vllm_config: Any, kv_cache_spec: dict[str, Any]) -> list[Any]:
        """The planned groups of these layers.

        Raises:
            PlanMismatchError: the engine has other layers than the plan.
        """
        plan = plan_in(vllm_config.additional_config)
        if plan is None or plan.policy == "stock":
            groups: list[Any] = super().get_kv_cache_groups(vllm_config, kv_cache_spec)
            return groups
        return planned_groups(plan, kv_cache_spec, KVCacheGroupSpec)
