"""An engine core that ends with the process that started it.

vLLM's workers end with their engine core, but the core itself only when it is asked to. If the process that asks is
killed (a replica, or the node's Ray), the core lives on and keeps its memory, and the replica that should replace it
finds none.

Remove when vLLM's engine core watches its parent.
"""

import logging
import multiprocessing
import os
import signal
import threading
from multiprocessing.connection import wait

logger = logging.getLogger("vllm.hybrid_serve")

_watching = threading.Event()


def end_with_parent() -> bool:
    """Kill this process as soon as its parent is gone. Idempotent.

    Answers False where there is nothing to do: this process was not started through multiprocessing, or is watched.
    """
    parent = multiprocessing.parent_process()
    if parent is None or _watching.is_set():
        return False
    _watching.set()
    threading.Thread(target=_watch, args=(parent.sentinel,), name="end_with_parent", daemon=True).start()
    return True


def _watch(sentinel: int) -> None:
    wait([sentinel])
    logger.error("the process that started this engine is gone: ending")
    os.kill(os.getpid(), signal.SIGKILL)
