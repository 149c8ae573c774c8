"""A worker that lays all of the drafter's layers over one page: what a wrong plan would do to its KV cache.

Greedy output does not change, since the target verifies every token; acceptance does. That makes acceptance a check.
"""

from dataclasses import replace
from typing import Any

from vllm.v1.worker.worker_base import WorkerWrapperBase

from hybrid_serve.engine.worker_extension import PlanWorkerExtension

_checked = WorkerWrapperBase.initialize_from_config


def _initialize_with_overlap(self: Any, kv_cache_configs: list[Any]) -> None:
    for config in kv_cache_configs:
        drafters = {name for group in config.kv_cache_groups if group.is_eagle_group for name in group.layer_names}
        overlapping = [tensor for tensor in config.kv_cache_tensors if set(tensor.layers) & drafters]
        assert overlapping, "no drafter layers to corrupt"
        for tensor in overlapping:
            config.kv_cache_tensors.remove(tensor)
            config.kv_cache_tensors += [replace(tensor, layers=[name]) for name in tensor.layers]
    _checked(self, kv_cache_configs)


WorkerWrapperBase.initialize_from_config = _initialize_with_overlap


class CorruptingWorkerExtension(PlanWorkerExtension):
    """Installed by importing this module in a worker."""
