"""The table of KV cases: public reports, and what vLLM's own code answers on each (tests/data/README.md)."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from hybrid_serve.facts.capabilities import EngineCapabilities
from hybrid_serve.facts.layers import AttentionLayers, Layers, MambaLayers
from hybrid_serve.plan.inputs import EngineSettings, PlanInputs

CASES: list[dict[str, Any]] = json.loads((Path(__file__).parent / "data" / "kv_cases.json").read_text())


def attention(kind: Any, row: dict[str, Any]) -> AttentionLayers:
    return AttentionLayers(
        kind=kind,
        count=row["layers"],
        kv_heads=row["kv_heads"],
        head_dim=row["head_dim"],
        window=row.get("window"),
    )


def layers_of(row: dict[str, Any], order: tuple[str, ...]) -> Layers:
    """Layer buckets of a case's `target` or `drafter`, in the order in which vLLM registers them."""
    buckets: list[AttentionLayers | MambaLayers] = []
    for kind in order:
        if not row.get(kind):
            continue
        if kind == "mamba":
            values = dict(row["mamba"])
            buckets.append(MambaLayers(count=values.pop("layers"), **values))
        else:
            buckets.append(attention(kind, row[kind]))
    return Layers(buckets=tuple(buckets))


def inputs_of(case: dict[str, Any], capabilities: EngineCapabilities) -> PlanInputs:
    """A case of the table as planner inputs."""
    drafter = case["drafter"]
    settings = EngineSettings(
        tensor_parallel_size=case["tp"],
        kv_dtype=case["kv_dtype"],
        draft_kv_dtype=case["draft_kv_dtype"] or "auto",
        num_speculative_tokens=case["k"],
        max_model_len=case["max_model_len"],
        max_num_batched_tokens=case["max_num_batched_tokens"],
        prefix_caching=case["mamba_cache_mode"] == "align",
        kv_cache_layout=case.get("layout"),
        gdn_prefill_backend=case.get("gdn_prefill_backend", "triton"),
    )
    return PlanInputs(
        target=layers_of(case["target"], ("mamba", "sliding", "full")),
        drafter=layers_of(drafter, ("sliding", "full")) if drafter else None,
        settings=settings,
        device=case.get("device", "cuda"),
        sm=None if case.get("device") == "cpu" else case.get("sm", 90),
        kv_memory_bytes=case["kv_memory_bytes"],
        capabilities=capabilities,
        method=case.get("method", "dflash"),
    )


def case_named(name: str) -> dict[str, Any]:
    return next(case for case in CASES if case["name"] == name)


def with_settings(inputs: PlanInputs, **changes: Any) -> PlanInputs:
    return replace(inputs, settings=replace(inputs.settings, **changes))
