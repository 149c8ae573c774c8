"""What every vLLM worker carries: vLLM mixes this class into its worker class (`worker_extension_cls`).

A plugin that fails to import is only logged by vLLM; a worker extension that fails to import ends the start. So this
module installs the plan's patch in the worker and makes the worker compare the KV cache configuration it is handed with
the plan before it allocates anything: if the engine core did not apply the plan, the start fails here.
"""

from copy import copy
from typing import Any

from hybrid_serve.engine.additional import plan_in
from hybrid_serve.engine.apply import KINDS, PlanMismatchError, group_rows, rows_of_plan
from hybrid_serve.engine.patches import cpu_sampling
from hybrid_serve.engine.plugin import register
from hybrid_serve.facts.capabilities import capabilities

_MARK = "__hybrid_serve_checked__"


def check_groups(vllm_config: Any, kv_cache_config: Any) -> None:
    """Raises PlanMismatchError if a worker was handed other groups than the plan has."""
    plan = plan_in(vllm_config.additional_config)
    if plan is None or plan.policy == "stock":
        return
    planned, actual = rows_of_plan(plan), group_rows(kv_cache_config.kv_cache_groups, KINDS)
    if planned != actual:
        raise PlanMismatchError(
            f"KV plan {plan.plan_id} is not in force in the engine core: planned {len(planned)} groups (kind, layers, "
            f"block_size, page_size_bytes) {planned[:4]}, it made {len(actual)}: {actual[:4]}. The hybrid_serve plugin "
            "was not loaded there; check the engine core's log, and that VLLM_PLUGINS, if set, names hybrid_serve"
        )


def _check_before_allocation() -> None:
    from vllm.v1.worker.worker_base import WorkerWrapperBase

    original = WorkerWrapperBase.initialize_from_config
    if hasattr(original, _MARK):
        return

    def initialize_from_config(self: Any, kv_cache_configs: list[Any]) -> None:
        check_groups(self.vllm_config, kv_cache_configs[self.global_rank])
        original(self, kv_cache_configs)

    setattr(initialize_from_config, _MARK, True)
    WorkerWrapperBase.initialize_from_config = initialize_from_config


def prefix_match_unit(vllm_config: Any, kv_cache_config: Any) -> int | None:
    """Tokens between two prefix hashes, by the function that the engine core takes them from; None if it makes none.

    Of the configuration that this worker was handed, which has the engine core's groups. The core sets the
    configuration's block size to the smallest of its groups' first (v1/engine/core.py, _initialize_kv_caches).
    """
    from vllm.v1.core.kv_cache_utils import resolve_kv_cache_block_sizes

    if not vllm_config.cache_config.enable_prefix_caching:
        return None
    as_in_core = copy(vllm_config)
    as_in_core.cache_config = copy(vllm_config.cache_config)
    as_in_core.cache_config.block_size = min(g.kv_cache_spec.block_size for g in kv_cache_config.kv_cache_groups)
    _, unit = resolve_kv_cache_block_sizes(kv_cache_config, as_in_core)
    return int(unit)


def _mend_cpu_sampling() -> None:
    import vllm
    from vllm.platforms import current_platform

    if current_platform.is_cpu() and capabilities(vllm.__version__).cpu_expands_only_integers:
        cpu_sampling.install()


register()
_check_before_allocation()
_mend_cpu_sampling()


def capacity(vllm_config: Any, kv_cache_config: Any) -> tuple[int, float]:
    """(KV cache size in tokens, maximum concurrency), as a vLLM that only logs them works them out.

    vLLM 0.20.1, v1/core/kv_cache_utils.py, _report_kv_cache_config.
    """
    from vllm.v1.core.kv_cache_utils import get_max_concurrency_for_kv_cache_config

    concurrency = float(get_max_concurrency_for_kv_cache_config(vllm_config, kv_cache_config))
    return int(concurrency * vllm_config.model_config.max_model_len), concurrency


class PlanWorkerExtension:
    """Methods for `collective_rpc`: what this worker really runs."""

    def hybrid_serve_report(self) -> dict[str, Any]:
        """{"patched": bool, "plan_id": str | None, "num_blocks": int, "groups": [[kind, layers, block, page], ...],
        "prefix_match_unit": int | None,
        "capacity": (tokens, concurrency), or None where the engine core publishes it}."""
        import vllm

        from hybrid_serve.engine.plugin import patched

        worker: Any = self
        config = worker.model_runner.kv_cache_config
        plan = plan_in(worker.vllm_config.additional_config)
        published = capabilities(vllm.__version__).publishes_capacity
        return {
            "capacity": None if published else capacity(worker.vllm_config, config),
            "patched": patched(),
            "plan_id": plan.plan_id if plan else None,
            "num_blocks": config.num_blocks,
            "groups": [list(row) for row in group_rows(config.kv_cache_groups, KINDS)],
            "prefix_match_unit": prefix_match_unit(worker.vllm_config, config),
        }
