"""The one place where facts become the planner's inputs."""

from dataclasses import replace

from hybrid_serve.facts.capabilities import EngineCapabilities, capabilities
from hybrid_serve.facts.device import DeviceFacts, DeviceKind
from hybrid_serve.facts.errors import FactsError, Problem
from hybrid_serve.facts.model import DrafterFacts, TargetFacts
from hybrid_serve.facts.pairing import check_pair
from hybrid_serve.plan.inputs import EngineSettings, PlanInputs, Workload


def ssm_cache_dtype(asked: str, device: DeviceKind) -> str:
    """vLLM's `mamba_ssm_cache_dtype` for a device: as asked; `auto` is float32 on a CPU, whose GDN kernels want it."""
    return "float32" if asked == "auto" and device == "cpu" else asked


def plan_inputs(
    *,
    target: TargetFacts,
    drafter: DrafterFacts | None,
    settings: EngineSettings,
    device: DeviceFacts,
    kv_memory_bytes: int,
    vllm: str,
    workload: Workload | None = None,
) -> PlanInputs:
    """One replica's planning problem.

    Two `auto`s are resolved on the way as vLLM does: a quantised checkpoint's own KV cache dtype replaces `kv_dtype`
    `auto`, and a drafter runs in its target's dtype.

    Raises:
        FactsError: everything that does not fit, at once: the pair, K without a drafter, max_model_len, memory, the
            vLLM release.
    """
    problems = [*_drafting(target, drafter, settings), *_lengths(target, settings, workload), *_memory(kv_memory_bytes)]
    engine = _capabilities(vllm, problems)
    if problems or engine is None:
        raise FactsError(*problems)
    if settings.kv_dtype == "auto" and target.kv_cache_dtype == "fp8":
        settings = replace(settings, kv_dtype="fp8")
    return PlanInputs(
        target=target.layers,
        drafter=drafter.layers if drafter else None,
        settings=settings,
        device=device.kind,
        sm=device.sm,
        kv_memory_bytes=kv_memory_bytes,
        capabilities=engine,
        target_dtype=target.dtype,
        drafter_dtype=target.dtype,
        method=drafter.method if drafter else "dflash",
        workload=workload or Workload(),
    )


def _drafting(target: TargetFacts, drafter: DrafterFacts | None, settings: EngineSettings) -> tuple[Problem, ...]:
    if drafter is not None:
        return check_pair(target, drafter, settings.num_speculative_tokens)
    if settings.num_speculative_tokens:
        return (
            Problem(
                reason=f"num_speculative_tokens is {settings.num_speculative_tokens} without a drafter",
                remedy="Give a drafter, or set num_speculative_tokens to 0",
            ),
        )
    return ()


def _lengths(target: TargetFacts, settings: EngineSettings, workload: Workload | None) -> tuple[Problem, ...]:
    problems = []
    longest = target.max_position_embeddings
    if not 1 <= settings.max_model_len <= longest:
        problems.append(
            Problem(
                reason=f"max_model_len is {settings.max_model_len}, {target.source} was made for at most {longest}",
                remedy=f"Set max_model_len to {longest} or less",
            )
        )
    over = [length for length, _ in workload.contexts if length > settings.max_model_len] if workload else []
    if over:
        problems.append(
            Problem(
                reason=f"The workload has contexts of {max(over)} tokens, max_model_len is {settings.max_model_len}",
                remedy="Raise max_model_len, or plan for shorter contexts",
            )
        )
    return tuple(problems)


def _memory(kv_memory_bytes: int) -> tuple[Problem, ...]:
    if kv_memory_bytes > 0:
        return ()
    return (
        Problem(reason=f"kv_memory_bytes is {kv_memory_bytes}", remedy="Give the bytes for the KV cache on one device"),
    )


def _capabilities(vllm: str, problems: list[Problem]) -> EngineCapabilities | None:
    try:
        return capabilities(vllm)
    except ValueError as error:
        problems.append(Problem(reason=str(error), remedy="Install a supported release"))
        return None
