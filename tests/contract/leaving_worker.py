"""A worker that dies of what it raises while its engine starts, and whose engine core hangs then."""

import os
import signal
import sys
import traceback
from typing import Any

from vllm.v1.worker.worker_base import WorkerWrapperBase

from hybrid_serve.engine.worker_extension import PlanWorkerExtension

_checked = WorkerWrapperBase.initialize_from_config


def _checked_or_gone(self: Any, kv_cache_configs: list[Any]) -> None:
    try:
        _checked(self, kv_cache_configs)
    except Exception:
        traceback.print_exc()
        sys.stderr.flush()
        os.kill(os.getppid(), signal.SIGSTOP)
        os._exit(1)


WorkerWrapperBase.initialize_from_config = _checked_or_gone


class LeavingWorkerExtension(PlanWorkerExtension):
    """Installed by importing this module in a worker."""
