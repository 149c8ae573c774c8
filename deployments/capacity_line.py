"""The one line that says what a replica got, against what was planned and what stock vLLM would have had."""

from hybrid_serve.plan.decide import Decision
from hybrid_serve.plan.kv_plan import EngineReport, differences
from hybrid_serve.sizes import format_size


def capacity_line(decision: Decision, report: EngineReport, vllm: str) -> str:
    """E.g. `KV plan: 116,508 tokens in 1.0 GiB (stock vLLM 0.29.0: 69,905, +67 %), 5 groups, predicted = actual`."""
    plan = decision.plan
    assert plan is not None, "an engine ran, so there was a plan"
    stock = decision.stock_kv_tokens
    if stock is None:
        beside = "does not start"
    elif stock == 0:
        beside = "0"
    else:
        beside = f"{stock:,}, {100 * (plan.kv_tokens / stock - 1):+.0f} %"
    found = differences(plan, report)
    verdict = f"predicted != actual: {'; '.join(found)}" if found else "predicted = actual"
    return (
        f"KV plan: {plan.kv_tokens:,} tokens in {format_size(plan.kv_memory_bytes)} "
        f"(stock vLLM {vllm}: {beside}), {len(plan.groups)} groups, {verdict}"
    )
