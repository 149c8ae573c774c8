"""The `vllm.general_plugins` entry point: loaded in every process of an engine.

Two patches: vLLM's grouping (by version, `hybrid_serve.engine.patches`), and `EngineArgs.create_engine_config`, where
the `hybrid_serve` entry of `additional_config` is resolved to a plan before any process is started, and where what the
release gets wrong with a DFlash drafter is corrected or said. Without such an entry vLLM behaves as if the plugin were
not there, but for one error that then names the entry (`hybrid_serve.engine.patches.uniform_pages`).

Remove the second when vLLM lets a plugin edit the configuration before the engine starts.
"""

import atexit
import gc
import logging
from typing import Any

from hybrid_serve.engine.additional import WORKER_EXTENSION, requested
from hybrid_serve.engine.patches import patch_for
from hybrid_serve.facts.capabilities import capabilities

logger = logging.getLogger("vllm.hybrid_serve")

_MARK = "__hybrid_serve_original__"
_unsupported: str | None = None
_registered = False


def register() -> None:
    """Install both patches in this process. Idempotent.

    An unsupported vLLM is no error here, since other users of the environment load this too; it becomes one as
    soon as an engine is asked to run a plan.
    """
    global _registered, _unsupported
    if _registered:
        return
    _registered = True
    import vllm

    try:
        patch_for(vllm.__version__).install()
    except ValueError as error:
        _unsupported = str(error)
    _resolve_in_engine_args()
    # An engine core whose start failed may never end, and whoever waits for it waits for ever: Ray's exit hook imports
    # modules, that triggers a collection, which finalises a ZeroMQ context whose sockets are still open. Exit hooks run
    # last in, first out, so this one runs before Ray's. Remove when vLLM closes its sockets before it raises.
    atexit.register(gc.disable)


def patched() -> bool:
    """Whether vLLM's grouping is patched in this process."""
    import vllm

    return patch_for(vllm.__version__).installed()


def _resolve_in_engine_args() -> None:
    import vllm
    from vllm.engine.arg_utils import EngineArgs

    original = EngineArgs.create_engine_config
    if hasattr(original, _MARK):
        return

    def create_engine_config(self: Any, *args: Any, **kwargs: Any) -> Any:
        from hybrid_serve.engine.resolve import resolve, take_back_layout

        take_back_layout()
        request = requested(self.additional_config)
        if request is None:
            return original(self, *args, **kwargs)
        if _unsupported:
            raise ValueError(_unsupported)
        self.worker_extension_cls = _extension(self.worker_extension_cls)
        vllm_config = original(self, *args, **kwargs)
        from hybrid_serve.engine.drafter_faults import address

        vllm_config.additional_config = resolve(request, vllm_config)
        address(vllm_config, capabilities(vllm.__version__))
        return vllm_config

    setattr(create_engine_config, _MARK, original)
    EngineArgs.create_engine_config = create_engine_config


def _extension(asked: str) -> str:
    """Our worker extension, or the user's if it is built on ours."""
    if not asked or asked == WORKER_EXTENSION:
        return WORKER_EXTENSION
    from vllm.utils.import_utils import resolve_obj_by_qualname

    from hybrid_serve.engine.worker_extension import PlanWorkerExtension

    if issubclass(resolve_obj_by_qualname(asked), PlanWorkerExtension):
        return asked
    raise ValueError(
        f"worker_extension_cls={asked} does not check the KV plan in the workers: derive it from {WORKER_EXTENSION}"
    )
