"""The plan of each pool as `hybrid-serve fleet plan` shows it: a table, or plain values for tools."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from deployments.config import FLEET, AppConfig, ServedModel
from deployments.deployment_options import ACCELERATOR_LABEL
from deployments.fleet import PlannedModel, PlannedPool, plan_model
from hybrid_serve.facts.device import DeviceFacts
from hybrid_serve.plan.verdict import Impossible
from hybrid_serve.plan.workload import mean_concurrency
from hybrid_serve.plan_table import workload_words
from hybrid_serve.sizes import format_size

MILLION = 1_000_000


def plan_app(config: AppConfig, measured: Mapping[str, DeviceFacts] | None = None) -> tuple[PlannedModel, ...]:
    """Every model of an app, planned as the builder does; nothing is started. `measured`: devices by pool."""
    return tuple(plan_model(served, measured) for served in config.served)


def refused(models: Sequence[PlannedModel]) -> bool:
    """Whether the builder would refuse the app."""
    return any(model.problems for model in models)


def to_json(models: Sequence[PlannedModel]) -> dict[str, Any]:
    """Plain values. Costs are null where the configuration sets none, figures of a pool that only its replicas can plan
    for are null, too."""
    return {
        "models": [
            {
                "name": model.name,
                "agreement": None if model.agreement is None else model.agreement.to_json(),
                "pools": [_pool_json(pool) for pool in model.pools],
                "problems": [asdict(problem) for problem in model.problems],
            }
            for model in models
        ]
    }


def _pool_json(planned: PlannedPool) -> dict[str, Any]:
    pool, plan, inputs = planned.config.pool, planned.decision.plan, planned.inputs
    unaided = planned.decision.stock
    stock = None if isinstance(unaided, Impossible) else unaided.plan
    return {
        "name": planned.name,
        "accelerator": _accelerator(planned),
        "device": asdict(planned.device.facts),
        "device_known": planned.device.known,
        "kv_memory_bytes": inputs.kv_memory_bytes,
        "vllm": inputs.capabilities.version,
        "vllm_note": inputs.capabilities.note,
        "tensor_parallel_size": inputs.settings.tensor_parallel_size,
        "min_replicas": pool.min_replicas,
        "max_replicas": pool.max_replicas,
        "plan_id": None if plan is None else plan.plan_id,
        "pages": None if plan is None else plan.pages,
        "groups": None if plan is None else len(plan.groups),
        "num_blocks": None if plan is None else plan.num_blocks,
        "block_bytes": None if plan is None else plan.block_bytes,
        "kv_tokens": None if plan is None else plan.kv_tokens,
        "stock_kv_tokens": planned.decision.stock_kv_tokens,
        "concurrency_of_workload": None if plan is None else round(mean_concurrency(plan, inputs), 4),
        "stock_concurrency_of_workload": None if stock is None else round(mean_concurrency(stock, inputs), 4),
        "max_ongoing_requests": planned.sizing.max_ongoing_requests,
        "cost": pool.cost if _has_cost(planned) else None,
        "cost_per_million_kv_tokens": _cost_per_million(planned),
    }


def table(models: Sequence[PlannedModel], config: AppConfig) -> str:
    """For people: what each model's pools agree on, one line a pool, and what keeps the app from being deployed."""
    blocks = [_model_lines(model, served) for model, served in zip(models, config.served, strict=True)]
    return "\n\n".join("\n".join(lines) for lines in blocks)


def _model_lines(model: PlannedModel, served: ServedModel) -> Iterator[str]:
    if model.agreement is not None:
        agreed = model.agreement
        unit = (
            "none (no prefix caching)" if agreed.prefix_match_unit is None else f"{agreed.prefix_match_unit:,} tokens"
        )
        how = "what every pool holds" if served.engine.max_model_len == FLEET else "as configured"
        yield f"{model.name}: max_model_len {agreed.max_model_len:,} ({how}), prefix_match_unit {unit}"
        yield f"  target {agreed.target_fingerprint}, drafter {agreed.drafter_fingerprint or 'none'}"
        yield f"  requests at once: of {workload_words(model.pools[0].inputs)}"
        if model.problems:
            yield "  without the pools that are refused below"
        yield ""
        yield from _rows([_HEADER, *(_cells(pool) for pool in model.pools)])
        yield from _notes(model)
    else:
        yield f"{model.name}: no pool can be deployed"
    for problem in model.problems:
        yield ""
        yield f"refused, {problem}"


_HEADER = (
    "pool", "accelerator", "memory", "KV memory", "vLLM", "TP", "replicas", "plan", "groups", "KV tokens", "stock",
    "requests", "cost/1M tokens",
)  # fmt: skip


def _cells(planned: PlannedPool) -> tuple[str, ...]:
    pool, plan, inputs = planned.config.pool, planned.decision.plan, planned.inputs
    stock = planned.decision.stock_kv_tokens
    cost = _cost_per_million(planned)
    memory = format_size(planned.device.facts.memory_bytes)
    return (
        planned.name,
        _accelerator(planned),
        memory if planned.device.known else f"{memory} [guess]",
        format_size(inputs.kv_memory_bytes),
        inputs.capabilities.version,
        str(inputs.settings.tensor_parallel_size),
        f"{pool.min_replicas}-{pool.max_replicas}",
        "by replica" if plan is None else plan.plan_id,
        "" if plan is None else str(len(plan.groups)),
        "" if plan is None else f"{plan.kv_tokens:,}",
        "does not start" if stock is None else f"{stock:,}",
        "" if plan is None else f"{mean_concurrency(plan, inputs):.1f}",
        "" if cost is None else f"{cost:.3g}",
    )


def _rows(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    """Columns as wide as they need; those with nothing in any pool are left out. Names to the left, figures right."""
    columns = [column for column in zip(*rows, strict=True) if any(column[1:])]
    widths = [max(map(len, column)) for column in columns]
    for row in zip(*columns, strict=True):
        sized = enumerate(zip(row, widths, strict=True))
        yield "  ".join(cell.ljust(width) if at < 2 else cell.rjust(width) for at, (cell, width) in sized).rstrip()


def _notes(model: PlannedModel) -> Iterator[str]:
    """What the figures leave open."""
    if any(not pool.device.known for pool in model.pools):
        yield "[guess]: no GPU is named or visible here; replicas plan for the GPU that they find"
    estimated = [pool.name for pool in model.pools if pool.config.engine.kv_memory is None]
    if estimated:
        yield f"KV memory of {', '.join(estimated)} is an estimate, of one GPU; each replica plans on what it measures"
    for note in dict.fromkeys(pool.inputs.capabilities.note for pool in model.pools):
        if note:
            yield note


def _accelerator(planned: PlannedPool) -> str:
    pool = planned.config.pool
    label = pool.accelerator_type or pool.label_selector.get(ACCELERATOR_LABEL)
    return f"{label} ({pool.device})" if label and pool.device == "cpu" else label or planned.device.facts.name


def _has_cost(planned: PlannedPool) -> bool:
    return "cost" in planned.config.pool.model_fields_set


def _cost_per_million(planned: PlannedPool) -> float | None:
    """Relative cost of a million KV tokens for an hour."""
    plan = planned.decision.plan
    if plan is None or not plan.kv_tokens or not _has_cost(planned):
        return None
    return round(planned.config.pool.cost * MILLION / plan.kv_tokens, 6)
