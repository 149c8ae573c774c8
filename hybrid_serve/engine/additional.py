"""The `hybrid_serve` entry of vLLM's `additional_config`: how a plan travels to every process of an engine.

    {"hybrid_serve": {"plan": "auto"}}       plan on the spot, from the checkpoints' config.json
    {"hybrid_serve": {"plan": "stock"}}      vLLM's own layout, predicted and compared
    {"hybrid_serve": {"plan": {...}}}        this plan (KVPlan.to_json()), nothing else

`auto` and `stock` exist only until the process that builds the engine's arguments has resolved them.
"""

from collections.abc import Mapping
from typing import Any, Literal

from hybrid_serve.plan.kv_plan import KVPlan

KEY = "hybrid_serve"
KNOWN = ("plan",)
WORKER_EXTENSION = "hybrid_serve.engine.worker_extension.PlanWorkerExtension"

PlanRequest = KVPlan | Literal["auto", "stock"]


class AdditionalConfigError(ValueError):
    """The `hybrid_serve` entry is not one; the message says what is expected."""


def entry(plan: PlanRequest) -> dict[str, Any]:
    """The `additional_config` that asks for a plan."""
    return {KEY: {"plan": plan.to_json() if isinstance(plan, KVPlan) else plan}}


def requested(additional_config: Any) -> PlanRequest | None:
    """What an `additional_config` asks for; None if it has no `hybrid_serve` entry.

    Raises:
        AdditionalConfigError: the entry has unknown keys, no plan, or something that is no plan.
    """
    if not isinstance(additional_config, Mapping) or KEY not in additional_config:
        return None
    value = additional_config[KEY]
    expected = f'expected {{"{KEY}": {{"plan": "auto" | "stock" | {{a KV plan}}}}}}'
    if not isinstance(value, Mapping):
        raise AdditionalConfigError(f"additional_config[{KEY!r}] is {value!r}; {expected}")
    if unknown := sorted(set(value) - set(KNOWN)):
        raise AdditionalConfigError(f"additional_config[{KEY!r}] has unknown keys {unknown}; {expected}")
    plan = value.get("plan")
    if plan == "auto" or plan == "stock":
        return plan  # type: ignore[no-any-return]
    if not isinstance(plan, Mapping):
        raise AdditionalConfigError(f"additional_config[{KEY!r}]['plan'] is {plan!r}; {expected}")
    return KVPlan.from_json(dict(plan))


def plan_in(additional_config: Any) -> KVPlan | None:
    """The resolved plan in an engine process; None if there is no `hybrid_serve` entry.

    Raises:
        AdditionalConfigError: the entry was never resolved, so the process that built the engine's arguments did
            not load the plugin.
    """
    plan = requested(additional_config)
    if isinstance(plan, str):
        raise AdditionalConfigError(
            f"the plan is still {plan!r} in an engine process: the hybrid_serve plugin was not loaded where the "
            "engine's arguments were built; check that hybrid-serve is installed in that environment and that "
            "VLLM_PLUGINS, if set, names hybrid_serve"
        )
    return plan
