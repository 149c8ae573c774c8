"""A worker that dies while its engine starts, of an engine core that then hangs."""

import os
import signal
from typing import Any

from vllm.v1.worker.worker_base import WorkerWrapperBase

from hybrid_serve.engine.worker_extension import PlanWorkerExtension


def _leave(self: Any, kv_cache_configs: list[Any]) -> None:
    os.kill(os.getppid(), signal.SIGSTOP)
    os._exit(1)


WorkerWrapperBase.initialize_from_config = _leave


class LeavingWorkerExtension(PlanWorkerExtension):
    """Installed by importing this module in a worker."""
