"""Tensor parallelism on one GPU: a vLLM worker that puts every rank on the same device.

    --tensor-parallel-size 2 --engine-args '{"worker_cls": "benchmarks.shared_gpu.SharedGPUWorker",
        "distributed_executor_backend": "mp", "disable_custom_all_reduce": true, "enforce_eager": true}'

For checks of what is split over the ranks (heads, states, KV cache), never for speed: NCCL wants a GPU for each rank,
so the ranks talk through gloo here.
"""

import os
from typing import Any

from vllm.platforms import current_platform
from vllm.v1.worker.gpu_worker import Worker


class SharedGPUWorker(Worker):  # type: ignore[misc]  # vLLM has no types for mypy
    """A GPU worker on the first device, whatever its rank."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        os.environ |= {"VLLM_DISABLE_PYNCCL": "1", "VLLM_ALLREDUCE_USE_FLASHINFER": "0"}
        current_platform.dist_backend = "gloo"
        super().__init__(*arguments, **named | {"local_rank": 0})
