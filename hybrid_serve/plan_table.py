"""A plan as a person reads it at a glance: stock beside what was chosen."""

from collections.abc import Sequence
from textwrap import fill

from hybrid_serve.plan.choose_k import OBJECTIVE, KRow, best_k
from hybrid_serve.plan.decide import Decision
from hybrid_serve.plan.inputs import PlanInputs
from hybrid_serve.plan.kv_plan import GroupKind, KVPlan, Owner
from hybrid_serve.plan.replay_words import replayed
from hybrid_serve.plan.search import contexts_of
from hybrid_serve.plan.verdict import Fits, Impossible, NeedsPatch, Verdict
from hybrid_serve.plan.workload import (
    TypeBytes,
    by_layer_type,
    concurrency_at,
    contexts_to_show,
    mean_concurrency,
    mean_floor_bytes,
    mean_request_bytes,
)
from hybrid_serve.sizes import format_size

WIDTH = 100

Named = tuple[str, KVPlan]

ORDER: tuple[tuple[Owner, GroupKind], ...] = (
    ("target", "full"), ("target", "sliding"), ("target", "mamba"),
    ("drafter", "full"), ("drafter", "sliding"), ("drafter", "mamba"),
)  # fmt: skip


def verdict_name(verdict: Verdict) -> str:
    return {Fits: "fits", NeedsPatch: "needs_patch", Impossible: "impossible"}[type(verdict)]


def table(decision: Decision, inputs: PlanInputs) -> str:
    """What to do, what each policy gives, where a request's bytes go, and the groups of the chosen plan."""
    chosen = decision.chosen
    lines = [
        f"{verdict_name(chosen)}: vLLM {inputs.capabilities.version} on {inputs.device}, "
        f"{format_size(inputs.kv_memory_bytes)} of KV cache"
    ]
    if inputs.capabilities.note:
        lines.append(f"  note: {inputs.capabilities.note}")
    if isinstance(chosen, Impossible):
        return "\n".join([*lines, f"  {chosen.reason}", f"  to do: {chosen.remedy}"])
    if isinstance(chosen, NeedsPatch):
        lines += [f"  {chosen.reason}", f"  to do: {chosen.remedy}"]
    verdicts: dict[str, Verdict] = {"stock": decision.stock, decision.policy: chosen}
    plans = [(name, v.plan) for name, v in verdicts.items() if not isinstance(v, Impossible)]
    lines += ["", *_summary(verdicts, inputs)]
    lines += ["", *_concurrency(plans, inputs)]
    lines += ["", *_layer_types(plans, inputs)]
    lines += ["", *_groups(chosen.plan)]
    if (what_if := replayed(decision, inputs)) is not None:
        lines += ["", fill(what_if.text, WIDTH)]
    return "\n".join(lines)


def workload_words(inputs: PlanInputs) -> str:
    """`a request of 8,192 tokens`, or the mix."""
    contexts = contexts_of(inputs)
    if len(contexts) == 1:
        return f"a request of {contexts[0][0]:,} tokens"
    return "a mean request of " + ", ".join(f"{weight:.0%} {tokens:,} tokens" for tokens, weight in contexts)


def _summary(verdicts: dict[str, Verdict], inputs: PlanInputs) -> list[str]:
    titles = ("KV tokens", "groups", "block bytes", "request bytes", "of floor")
    lines = [f"{'':8}" + "".join(f"{title:>15}" for title in titles)]
    for name, verdict in verdicts.items():
        if isinstance(verdict, Impossible):
            lines.append(f"{name:8}  does not start: {verdict.reason}")
            continue
        plan = verdict.plan
        needed = mean_request_bytes(plan, inputs)
        share = needed / mean_floor_bytes(inputs)
        lines.append(
            f"{name:8}{plan.kv_tokens:>15,}{len(plan.groups):>15}{plan.block_bytes:>15,}{needed:>15,}{share:>14.2f}x"
        )
    floor = f"{mean_floor_bytes(inputs):,}"
    return [*lines, f"{'floor':8}{'':>15}{'':>15}{'':>15}{floor:>15}  ({workload_words(inputs)}, nothing padded)"]


def _concurrency(plans: Sequence[Named], inputs: PlanInputs) -> list[str]:
    """Requests that fit at once, by context."""
    contexts = contexts_to_show(inputs)
    mixed = len(contexts_of(inputs)) > 1
    titles = [f"{tokens:,} tok" for tokens in contexts] + (["the workload"] if mixed else [])
    lines = ["requests at once", f"{'':8}" + "".join(f"{title:>15}" for title in titles)]
    for name, plan in plans:
        figures = [concurrency_at(plan, inputs, tokens) for tokens in contexts]
        figures += [mean_concurrency(plan, inputs)] if mixed else []
        lines.append(f"{name:8}" + "".join(f"{figure:>15.2f}" for figure in figures))
    return lines


def _layer_types(plans: Sequence[Named], inputs: PlanInputs) -> list[str]:
    """Bytes of a request by layer type, each plan's beside the other's."""
    parts = [{(part.owner, part.kind): part for part in by_layer_type(plan, inputs)} for _, plan in plans]
    lines = [
        f"bytes of {workload_words(inputs)}, by layer type",
        f"{'':16}" + "".join(f"{f'{name}: groups':>15}{'bytes':>15}{'padding':>15}{'':>5}" for name, _ in plans),
    ]
    for owner, kind in ORDER:
        cells = [_part_cells(found.get((owner, kind))) for found in parts]
        if any(cell.strip() for cell in cells):
            lines.append(f"{owner:8}{kind:8}" + "".join(cells))
    return [*lines, f"{'all':16}" + "".join(_part_cells(*found.values()) for found in parts)]


def _part_cells(*parts: TypeBytes | None) -> str:
    found = [part for part in parts if part is not None]
    held = sum(part.held for part in found)
    if not found or not held:
        return " " * 50
    padding = sum(part.padding for part in found)
    groups = sum(part.groups for part in found)
    return f"{groups:>15}{held:>15,}{padding:>15,}{padding / held:>5.0%}"


def _groups(plan: KVPlan) -> list[str]:
    """Equal groups in a row are one line."""
    lines = [f"{'groups':8}{'owner':>9}{'kind':>9}{'layers':>8}{'block size':>12}{'page bytes':>12}{'padding':>12}"]
    rows: list[tuple[str, int]] = []
    for group in plan.groups:
        row = (
            f"{group.owner:>9}{group.kind:>9}{group.layers:>8}{group.block_size:>12,}"
            f"{group.page_size_bytes:>12,}{group.padding_bytes(plan.block_bytes):>12,}"
        )
        if rows and rows[-1][0] == row:
            rows[-1] = (row, rows[-1][1] + 1)
        else:
            rows.append((row, 1))
    return [*lines, *(f"{f'{count} x':8}{row}" for row, count in rows)]


def choose_k_lines(rows: Sequence[KRow]) -> list[str]:
    """One line a K, and which is best in which sense; nothing without rows."""
    if not rows:
        return []
    chosen = best_k(rows)
    titles = ("K", "tokens/step", "request bytes", "mamba state", "concurrency", "tokens/step x concurrency")
    lines = ["", "".join(f"{title:>{max(15, len(title) + 2)}}" for title in titles)]
    for row in rows:
        mark = "  <- highest" if row == chosen else ""
        able = row.request_bytes is not None
        needed = f"{row.request_bytes:,}" if able else "does not fit"
        concurrency = f"{row.concurrency:.2f}" if able else ""
        product = f"{row.yield_per_step:.1f}" if able else ""
        lines.append(
            f"{row.k:>15}{row.tokens_per_step:>15.2f}{needed:>15}{row.state_share:>15.0%}{concurrency:>15}"
            f"{product:>27}{mark}"
        )
    return [*lines, fill(f"highest by {OBJECTIVE}.", WIDTH)]
