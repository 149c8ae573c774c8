"""Options that `plan`, `explain` and `fit` share, and the planning problem that they describe."""

import argparse
from typing import NamedTuple, get_args

from hybrid_serve.facts.assemble import plan_inputs, ssm_cache_dtype
from hybrid_serve.facts.capabilities import DEFAULT_VLLM
from hybrid_serve.facts.catalogue import gpu
from hybrid_serve.facts.checkpoint import read_drafter, read_mtp, read_target
from hybrid_serve.facts.device import DeviceFacts, DeviceKind
from hybrid_serve.facts.memory import kv_memory_bytes
from hybrid_serve.facts.model import DrafterFacts, TargetFacts
from hybrid_serve.facts.pairing import speculative_tokens
from hybrid_serve.facts.probe import measure_device
from hybrid_serve.plan.inputs import EngineSettings, KVDtype, PlanInputs, Prefer, Workload
from hybrid_serve.sizes import parse_size

DEFAULT_SM = 90
"""Compute capability assumed for `--kv-memory` without `--gpu`: Hopper."""


class Pair(NamedTuple):
    """What the checkpoints say."""

    target: TargetFacts
    drafter: DrafterFacts | None

    @property
    def weights_bytes(self) -> int:
        """Of both, as far as there are weights."""
        return (self.target.weights_bytes or 0) + ((self.drafter.weights_bytes or 0) if self.drafter else 0)

    @property
    def without_weights(self) -> tuple[str, ...]:
        """`target`, `drafter`: those whose folder holds only a config, so that their weights are not counted."""
        sides = {"target": self.target, "drafter": self.drafter}
        return tuple(name for name, facts in sides.items() if facts is not None and facts.weights_bytes is None)


def add_pair(command: argparse.ArgumentParser) -> None:
    """Which models."""
    command.add_argument("--target", required=True, metavar="DIR|ID", help="folder with a config.json, or a hub id")
    command.add_argument(
        "--drafter", required=True, metavar="DIR|ID|mtp|none",
        help="the drafter; mtp for the MTP modules that the target carries; or none",
    )  # fmt: skip


def add_device(command: argparse.ArgumentParser) -> None:
    """Which device, and how much of it."""
    memory = command.add_mutually_exclusive_group()
    memory.add_argument("--gpu", metavar="NAME", help="GPU kind; its KV memory is estimated from its total memory")
    memory.add_argument("--kv-memory", metavar="SIZE", type=_size, help="KV cache memory of one device, e.g. 20GiB")
    command.add_argument(
        "--device", choices=("cuda", "cpu"), help="default: cuda, unless only this CPU is there to measure"
    )
    command.add_argument("--tp", type=int, default=1, metavar="N", help="tensor parallel size")


def add_engine(command: argparse.ArgumentParser) -> None:
    """The engine's version and settings."""
    command.add_argument("--vllm", default=DEFAULT_VLLM, metavar="V", help="vLLM version (default %(default)s)")
    command.add_argument("--kv-dtype", choices=get_args(KVDtype), default="auto")
    command.add_argument("--draft-kv-dtype", choices=get_args(KVDtype), default="auto")
    command.add_argument(
        "--mamba-ssm-cache-dtype", choices=("auto", "float32", "float16", "bfloat16"), default="auto",
        help="of the recurrent states; auto: float32 on a CPU, else the model's",
    )  # fmt: skip
    command.add_argument(
        "--num-speculative-tokens", type=int, metavar="K", help="default: the most the drafter drafts, if there is such"
    )
    command.add_argument(
        "--max-model-len", type=int, metavar="N", help="default: 8192, or the target's longest if less"
    )
    command.add_argument("--max-num-batched-tokens", type=int, default=8192, metavar="N")
    command.add_argument("--prefix-caching", action=argparse.BooleanOptionalAction, default=False)


def add_workload(command: argparse.ArgumentParser) -> None:
    """What requests are like, and what matters to them."""
    command.add_argument(
        "--prefer",
        choices=get_args(Prefer),
        default="capacity",
        help="capacity gives up next to no KV memory for fewer groups, speed at most 5 %% (default %(default)s)",
    )
    workload = command.add_mutually_exclusive_group()
    workload.add_argument(
        "--context", type=_tokens, metavar="N", help="tokens of the request that is weighed (default: max-model-len)"
    )
    workload.add_argument(
        "--workload", type=_workload, metavar="TOKENS:WEIGHT,...",
        help="requests by prompt and output tokens together, and how common they are, e.g. 2048:3,8192:1",
    )  # fmt: skip


def problem(arguments: argparse.Namespace) -> tuple[PlanInputs, Pair]:
    """The planning problem of `plan` and `explain`.

    Raises:
        FactsError: a checkpoint, the pair, the device or a setting is wrong; the text says which.
    """
    device = device_of(arguments)
    pair = read_pair(arguments, device.kind)
    memory = arguments.kv_memory or kv_memory_bytes(device, pair.weights_bytes, arguments.tp)
    return inputs_of(arguments, pair, device, tensor_parallel_size=arguments.tp, memory=memory), pair


def read_pair(arguments: argparse.Namespace, device: DeviceKind) -> Pair:
    """The models' facts, for one kind of device."""
    ssm_dtype = ssm_cache_dtype(arguments.mamba_ssm_cache_dtype, device)
    target = read_target(arguments.target, mamba_ssm_cache_dtype=ssm_dtype)
    return Pair(target, _read_drafter(arguments))


def _read_drafter(arguments: argparse.Namespace) -> DrafterFacts | None:
    match arguments.drafter:
        case "none":
            return None
        case "mtp":
            return read_mtp(arguments.target)
        case source:
            return read_drafter(source)


def device_of(arguments: argparse.Namespace) -> DeviceFacts:
    """The GPU asked for, or the device here; with `--kv-memory` one of which nothing but its kind matters."""
    if arguments.gpu:
        return gpu(arguments.gpu)
    if arguments.kv_memory is None:
        return measure_device(arguments.device or "auto")
    kind: DeviceKind = arguments.device or "cuda"
    sm = DEFAULT_SM if kind == "cuda" else None
    return DeviceFacts(kind=kind, name=kind, memory_bytes=arguments.kv_memory, sm=sm, measured=False)


def inputs_of(
    arguments: argparse.Namespace, pair: Pair, device: DeviceFacts, *, tensor_parallel_size: int, memory: int
) -> PlanInputs:
    """The planning problem on one device."""
    settings = EngineSettings(
        tensor_parallel_size=tensor_parallel_size,
        kv_dtype=arguments.kv_dtype,
        draft_kv_dtype=arguments.draft_kv_dtype,
        num_speculative_tokens=speculative_tokens(arguments.num_speculative_tokens, pair.drafter),
        max_model_len=arguments.max_model_len or min(8192, pair.target.max_position_embeddings),
        max_num_batched_tokens=arguments.max_num_batched_tokens,
        prefix_caching=arguments.prefix_caching,
    )
    contexts = ((arguments.context, 1.0),) if arguments.context else arguments.workload or ()
    return plan_inputs(
        target=pair.target,
        drafter=pair.drafter,
        settings=settings,
        device=device,
        kv_memory_bytes=memory,
        vllm=arguments.vllm,
        workload=Workload(contexts=contexts, prefer=arguments.prefer),
    )


def _size(text: str) -> int:
    try:
        return parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _tokens(text: str) -> int:
    try:
        tokens = int(text)
    except ValueError:
        tokens = 0
    if tokens < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of tokens above 0")
    return tokens


def _workload(text: str) -> tuple[tuple[int, float], ...]:
    contexts = []
    for part in text.split(","):
        tokens, _, weight = part.partition(":")
        try:
            context = (int(tokens), float(weight or 1))
        except ValueError:
            context = (0, 0.0)
        if context[0] < 1 or not 0 < context[1] < float("inf"):
            raise argparse.ArgumentTypeError(
                f"{part!r} is not TOKENS:WEIGHT: write whole tokens above 0 and a weight above 0, e.g. 2048:3,8192:1"
            )
        contexts.append(context)
    return tuple(contexts)
