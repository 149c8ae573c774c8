"""`hybrid-serve plan`: the KV plan of one replica, as a table or as JSON. Imports neither torch nor vllm."""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, get_args

from hybrid_serve import plan_options
from hybrid_serve.facts.errors import fail
from hybrid_serve.plan.choose_k import OBJECTIVE, KRow, best_k, check_acceptance, choose_k, from_conditional
from hybrid_serve.plan.decide import decide
from hybrid_serve.plan.inputs import PlanInputs
from hybrid_serve.plan.kv_plan import KVPlan, Policy
from hybrid_serve.plan.replay_words import replayed
from hybrid_serve.plan.search import contexts_of
from hybrid_serve.plan.verdict import Impossible, Verdict
from hybrid_serve.plan.workload import (
    by_layer_type,
    concurrency_at,
    contexts_to_show,
    mean_concurrency,
    mean_floor_bytes,
    mean_request_bytes,
    state_share,
)
from hybrid_serve.plan_options import Pair
from hybrid_serve.plan_table import choose_k_lines, table, verdict_name


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the subcommand."""
    command = commands.add_parser("plan", help="the KV plan of one replica", description=__doc__)
    plan_options.add_pair(command)
    plan_options.add_device(command)
    command.add_argument("--policy", choices=get_args(Policy), default="best")
    plan_options.add_engine(command)
    plan_options.add_workload(command)
    acceptance = command.add_mutually_exclusive_group()
    acceptance.add_argument(
        "--acceptance", type=_rates, metavar="RATE,...",
        help="share of drafts whose 1st, 2nd, ... token was accepted, as vLLM logs it (per-position acceptance rate): "
        "compares every K",
    )  # fmt: skip
    acceptance.add_argument(
        "--conditional-acceptance", type=_rates, metavar="RATE,...",
        help="the same, each rate only among drafts whose tokens before were accepted",
    )  # fmt: skip
    command.add_argument("--json", action="store_true", help="JSON instead of a table")
    command.set_defaults(run=run)


def _rates(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of rates: write e.g. 0.8,0.65,0.5") from None


def run(arguments: argparse.Namespace) -> int:
    """Plan and print. Exit status 1 if nothing fits."""
    inputs, pair = plan_options.problem(arguments)
    rows = _rows(arguments, inputs, pair)
    decision = decide(inputs, arguments.policy)
    if arguments.json:
        answer = to_json(decision.chosen, inputs)
        if (what_if := replayed(decision, inputs)) is not None:
            answer["with_replayssm"] = what_if._asdict()
        if rows:
            answer["choose_k"] = _choose_k_json(rows)
        print(json.dumps(answer, indent=2))
    else:
        print("\n".join([table(decision, inputs), *choose_k_lines(rows)]))
    return 1 if isinstance(decision.chosen, Impossible) else 0


def _rows(arguments: argparse.Namespace, inputs: PlanInputs, pair: Pair) -> tuple[KRow, ...]:
    """One row a K if acceptance rates are given."""
    given = arguments.acceptance or arguments.conditional_acceptance
    if given is None:
        return ()
    if pair.drafter is None:
        raise fail("Acceptance rates are given without a drafter", "Give the drafter they were measured with")
    try:
        rates = check_acceptance(from_conditional(given) if arguments.conditional_acceptance else given)
    except ValueError as error:
        raise fail(
            f"These are no acceptance rates: {error}", "Correct them, or give --conditional-acceptance"
        ) from None
    most = pair.drafter.max_speculative_tokens or len(rates)
    return choose_k(inputs, acceptance=rates, block_size=most + 1, policy=arguments.policy)


def to_json(verdict: Verdict, inputs: PlanInputs) -> dict[str, Any]:
    """The answer for machines; fields that an impossible plan has no value for are null.

    `request_bytes` and `floor_bytes` are of a mean request of the workload, `concurrency` and `kv_tokens` of requests
    of max_model_len, as vLLM logs them.
    """
    floor = mean_floor_bytes(inputs)
    answer: dict[str, Any] = {
        "verdict": verdict_name(verdict),
        "reason": getattr(verdict, "reason", ""),
        "remedy": getattr(verdict, "remedy", ""),
        "vllm": inputs.capabilities.version,
        "vllm_note": inputs.capabilities.note,
        "pages": None,
        "block_bytes": None,
        "groups": [],
        "num_blocks": None,
        "kv_tokens": None,
        "concurrency": None,
        "request_bytes": None,
        "floor_bytes": floor,
        "efficiency": None,
        "workload": [list(context) for context in contexts_of(inputs)],
        "state_share": round(state_share(inputs), 4),
    }
    if isinstance(verdict, Impossible):
        return answer | {"error": verdict.error, "max_model_len": verdict.max_model_len}
    return answer | _plan_json(verdict.plan, inputs, floor)


def _plan_json(plan: KVPlan, inputs: PlanInputs, floor: int) -> dict[str, Any]:
    needed = mean_request_bytes(plan, inputs)
    return {
        "pages": plan.pages,
        "kv_cache_layout": plan.kv_cache_layout,
        "block_bytes": plan.block_bytes,
        "groups": [
            {
                "kind": group.kind,
                "owner": group.owner,
                "layers": group.layers,
                "block_size": group.block_size,
                "page_size_bytes": group.page_size_bytes,
                "padding_bytes": group.padding_bytes(plan.block_bytes),
            }
            for group in plan.groups
        ],
        "num_blocks": plan.num_blocks,
        "kv_tokens": plan.kv_tokens,
        "concurrency": round(plan.concurrency, 4),
        "request_bytes": needed,
        "efficiency": round(floor / needed, 4),
        "concurrency_of_workload": round(mean_concurrency(plan, inputs), 4),
        "concurrency_at": [
            {"context": tokens, "concurrency": round(concurrency_at(plan, inputs, tokens), 4)}
            for tokens in contexts_to_show(inputs)
        ],
        "by_layer_type": [part._asdict() for part in by_layer_type(plan, inputs)],
    }


def _choose_k_json(rows: Sequence[KRow]) -> dict[str, Any]:
    chosen = best_k(rows)
    return {
        "objective": OBJECTIVE,
        "best_k": chosen.k if chosen else None,
        "rows": [asdict(row) for row in rows],
    }
