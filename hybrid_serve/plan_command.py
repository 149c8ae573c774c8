"""`hybrid-serve plan`: the KV plan of one replica, as a table or as JSON. Imports neither torch nor vllm."""

import argparse
import json
from typing import Any, get_args

from hybrid_serve.facts.assemble import plan_inputs, ssm_cache_dtype
from hybrid_serve.facts.capabilities import DEFAULT_VLLM
from hybrid_serve.facts.catalogue import gpu
from hybrid_serve.facts.checkpoint import read_drafter, read_target
from hybrid_serve.facts.device import DeviceFacts, DeviceKind
from hybrid_serve.facts.memory import kv_memory_bytes
from hybrid_serve.facts.model import DrafterFacts, TargetFacts
from hybrid_serve.facts.probe import measure_device
from hybrid_serve.plan.capacity import floor_bytes, request_bytes
from hybrid_serve.plan.decide import Decision, decide
from hybrid_serve.plan.inputs import EngineSettings, KVDtype, PlanInputs, Workload
from hybrid_serve.plan.kv_plan import KVPlan, Policy
from hybrid_serve.plan.verdict import Fits, Impossible, NeedsPatch, Verdict
from hybrid_serve.sizes import format_size, parse_size

DEFAULT_SM = 90
"""Compute capability assumed for `--kv-memory` without `--gpu`: Hopper."""


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the subcommand."""
    command = commands.add_parser("plan", help="the KV plan of one replica", description=__doc__)
    command.add_argument("--target", required=True, metavar="DIR|ID", help="folder with a config.json, or a hub id")
    command.add_argument("--drafter", required=True, metavar="DIR|ID|none", help="the DFlash drafter, or none")
    memory = command.add_mutually_exclusive_group()
    memory.add_argument("--gpu", metavar="NAME", help="GPU kind; its KV memory is estimated from its total memory")
    memory.add_argument("--kv-memory", metavar="SIZE", type=_size, help="KV cache memory of one device, e.g. 20GiB")
    command.add_argument("--vllm", default=DEFAULT_VLLM, metavar="V", help="vLLM version (default %(default)s)")
    command.add_argument("--policy", choices=get_args(Policy), default="best")
    command.add_argument(
        "--device", choices=("cuda", "cpu"), help="default: cuda, unless only this CPU is there to measure"
    )
    command.add_argument("--tp", type=int, default=1, metavar="N", help="tensor parallel size")
    command.add_argument("--kv-dtype", choices=get_args(KVDtype), default="auto")
    command.add_argument("--draft-kv-dtype", choices=get_args(KVDtype), default="auto")
    command.add_argument(
        "--mamba-ssm-cache-dtype", choices=("auto", "float32", "float16", "bfloat16"), default="auto",
        help="of the recurrent states; auto: float32 on a CPU, else the model's",
    )  # fmt: skip
    command.add_argument("--num-speculative-tokens", type=int, metavar="K", help="default: the most the drafter drafts")
    command.add_argument(
        "--max-model-len", type=int, metavar="N", help="default: 8192, or the target's longest if less"
    )
    command.add_argument("--max-num-batched-tokens", type=int, default=8192, metavar="N")
    command.add_argument("--prefix-caching", action=argparse.BooleanOptionalAction, default=False)
    command.add_argument(
        "--context", type=int, metavar="N", help="tokens of the request that is weighed (default: max-model-len)"
    )
    command.add_argument("--json", action="store_true", help="JSON instead of a table")
    command.set_defaults(run=run)


def _size(text: str) -> int:
    try:
        return parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def run(arguments: argparse.Namespace) -> int:
    """Plan and print. Exit status 1 if nothing fits."""
    device = _device(arguments)
    ssm_dtype = ssm_cache_dtype(arguments.mamba_ssm_cache_dtype, device.kind)
    target = read_target(arguments.target, mamba_ssm_cache_dtype=ssm_dtype)
    drafter = None if arguments.drafter == "none" else read_drafter(arguments.drafter)
    inputs = _inputs(arguments, device, target, drafter)
    decision = decide(inputs, arguments.policy)
    context = arguments.context or inputs.settings.max_model_len
    answer = to_json(decision.chosen, inputs, context)
    print(json.dumps(answer, indent=2) if arguments.json else table(decision, inputs, context))
    return 1 if isinstance(decision.chosen, Impossible) else 0


def _inputs(
    arguments: argparse.Namespace, device: DeviceFacts, target: TargetFacts, drafter: DrafterFacts | None
) -> PlanInputs:
    asked = arguments.num_speculative_tokens
    tokens = asked if asked is not None else (drafter.max_speculative_tokens if drafter else 0)
    longest = arguments.max_model_len or min(8192, target.max_position_embeddings)
    settings = EngineSettings(
        tensor_parallel_size=arguments.tp,
        kv_dtype=arguments.kv_dtype,
        draft_kv_dtype=arguments.draft_kv_dtype,
        num_speculative_tokens=tokens,
        max_model_len=longest,
        max_num_batched_tokens=arguments.max_num_batched_tokens,
        prefix_caching=arguments.prefix_caching,
    )
    weights = (target.weights_bytes or 0) + ((drafter.weights_bytes or 0) if drafter else 0)
    memory = arguments.kv_memory or kv_memory_bytes(device, weights, arguments.tp)
    contexts = ((arguments.context, 1.0),) if arguments.context else ()
    return plan_inputs(
        target=target,
        drafter=drafter,
        settings=settings,
        device=device,
        kv_memory_bytes=memory,
        vllm=arguments.vllm,
        workload=Workload(contexts=contexts),
    )


def _device(arguments: argparse.Namespace) -> DeviceFacts:
    """The GPU asked for, or the device here; with `--kv-memory` one of which nothing but its kind matters."""
    if arguments.gpu:
        return gpu(arguments.gpu)
    if arguments.kv_memory is None:
        return measure_device(arguments.device or "auto")
    kind: DeviceKind = arguments.device or "cuda"
    sm = DEFAULT_SM if kind == "cuda" else None
    return DeviceFacts(kind=kind, name=kind, memory_bytes=arguments.kv_memory, sm=sm, measured=False)


def to_json(verdict: Verdict, inputs: PlanInputs, context: int) -> dict[str, Any]:
    """The answer for machines; fields that an impossible plan has no value for are null."""
    floor = floor_bytes(inputs, context)
    answer: dict[str, Any] = {
        "verdict": _name(verdict),
        "reason": getattr(verdict, "reason", ""),
        "remedy": getattr(verdict, "remedy", ""),
        "vllm": inputs.capabilities.version,
        "pages": None,
        "block_bytes": None,
        "groups": [],
        "num_blocks": None,
        "kv_tokens": None,
        "concurrency": None,
        "request_bytes": None,
        "floor_bytes": floor,
        "efficiency": None,
    }
    if isinstance(verdict, Impossible):
        return answer | {"error": verdict.error, "max_model_len": verdict.max_model_len}
    plan = verdict.plan
    needed = request_bytes(plan, inputs, context)
    return answer | {
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
    }


def _name(verdict: Verdict) -> str:
    return {Fits: "fits", NeedsPatch: "needs_patch", Impossible: "impossible"}[type(verdict)]


def table(decision: Decision, inputs: PlanInputs, context: int) -> str:
    """The answer for people: stock beside the chosen plan, then the groups."""
    lines = [
        f"{_name(decision.chosen)}: vLLM {inputs.capabilities.version} on {inputs.device}, "
        f"{format_size(inputs.kv_memory_bytes)} of KV cache"
    ]
    if isinstance(decision.chosen, Impossible):
        return "\n".join([*lines, f"  {decision.chosen.reason}", f"  to do: {decision.chosen.remedy}"])
    if isinstance(decision.chosen, NeedsPatch):
        lines += [f"  {decision.chosen.reason}", f"  to do: {decision.chosen.remedy}"]
    titles = ("KV tokens", "concurrency", "groups", "block bytes", "request bytes", "of floor")
    lines += ["", f"{'':8}" + "".join(f"{title:>15}" for title in titles)]
    columns = {"stock": decision.stock, decision.policy: decision.chosen}
    for name, verdict in columns.items():
        lines.append(f"{name:8}" + _row(verdict, inputs, context))
    lines += ["", *_group_lines(decision.chosen.plan)]
    return "\n".join(lines)


def _row(verdict: Verdict, inputs: PlanInputs, context: int) -> str:
    if isinstance(verdict, Impossible):
        return f"  does not start: {verdict.reason}"
    plan = verdict.plan
    needed = request_bytes(plan, inputs, context)
    share = needed / floor_bytes(inputs, context)
    return (
        f"{plan.kv_tokens:>15,}{plan.concurrency:>15.2f}{len(plan.groups):>15}{plan.block_bytes:>15,}"
        f"{needed:>15,}{share:>14.2f}x"
    )


def _group_lines(plan: KVPlan) -> list[str]:
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
