"""One real engine's life, as a task describes it.

Keys: policy ("best" | "stock"), drafter (bool), prompts (how many of the 50 held-out ones, greedy), max_tokens, tokens
(K), plan_tokens (K that the plan is made for, to hand the engine a wrong plan), worker_extension_cls, kv_memory,
prefix_caching, prefix_match_unit, tensor_parallel_size, eager, temperature, context (tokens the plan is made for),
aux_layers (target layers that the drafter is fed from instead of its own, in vLLM's counting), then (what the same
engine is asked afterwards: prompts, max_tokens, temperature).
"""

import json
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx

from hybrid_serve.demo.corpus import held_out_prompts
from hybrid_serve.demo.geometry import DRAFT_DIR, TARGET_DIR
from hybrid_serve.engine.base import EngineConfig, EngineStartError, EngineStats
from hybrid_serve.engine.vllm_engine import VLLMEngine
from hybrid_serve.facts.assemble import plan_inputs
from hybrid_serve.facts.checkpoint import read_drafter, read_target
from hybrid_serve.facts.probe import measure_device
from hybrid_serve.plan.decide import Decision, decide
from hybrid_serve.plan.inputs import EngineSettings, Workload
from hybrid_serve.plan.kv_plan import differences

PROMPTS = 50
PROMPT_SEED = 2026


async def run(task: dict[str, Any]) -> dict[str, Any]:
    """One engine's life; `error` instead of figures if it did not start."""
    with TemporaryDirectory() as folder:
        return await live(task, drafter_fed(task["aux_layers"], Path(folder)) if "aux_layers" in task else DRAFT_DIR)


def drafter_fed(aux_layers: list[int], folder: Path) -> Path:
    """The demo drafter with other layers to feed on."""
    for file in DRAFT_DIR.iterdir():
        if file.name != "config.json":
            (folder / file.name).symlink_to(file)
    values = json.loads((DRAFT_DIR / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(values | {"eagle_aux_hidden_state_layer_ids": aux_layers}))
    return folder


def configured(task: dict[str, Any], drafter_path: Path) -> tuple[EngineConfig, Decision]:
    """What the task asks for, and the decision that its plan is from."""
    import vllm

    target = read_target(str(TARGET_DIR), mamba_ssm_cache_dtype="float32")
    drafter = read_drafter(str(drafter_path)) if task["drafter"] else None
    tokens = task.get("tokens", 7) if drafter else 0
    settings = EngineSettings(
        tensor_parallel_size=task.get("tensor_parallel_size", 1),
        num_speculative_tokens=tokens,
        max_model_len=2048,
        max_num_batched_tokens=2048,
        max_num_seqs=16,
        prefix_caching=task.get("prefix_caching", False),
    )
    inputs = plan_inputs(
        target=target,
        drafter=drafter,
        settings=replace(settings, num_speculative_tokens=task.get("plan_tokens", tokens)),
        device=measure_device("cpu"),
        kv_memory_bytes=task.get("kv_memory", 1 << 30),
        vllm=vllm.__version__.split("+")[0],
        workload=Workload(contexts=((task["context"], 1.0),)) if "context" in task else None,
    )
    decision = decide(inputs, task["policy"])
    assert decision.plan is not None
    extra: dict[str, Any] = {"enforce_eager": task.get("eager", True)}
    if "worker_extension_cls" in task:
        extra["worker_extension_cls"] = task["worker_extension_cls"]
    config = EngineConfig(
        model_name="demo",
        target_path=str(TARGET_DIR),
        drafter_path=str(drafter_path) if drafter else None,
        target=target,
        drafter=drafter,
        settings=replace(settings, prefix_match_unit=task.get("prefix_match_unit")),
        plan=decision.plan,
        engine_args=extra,
    )
    return config, decision


async def live(task: dict[str, Any], drafter_path: Path) -> dict[str, Any]:
    config, decision = configured(task, drafter_path)
    assert decision.plan is not None
    engine = VLLMEngine()
    try:
        report = await engine.start(config)
    except EngineStartError as error:
        return {"error": str(error)}
    try:
        outputs = await generate(engine, task)
        stats = await engine.stats()
        more = {"then": await asked_then(engine, task["then"], stats)} if "then" in task else {}
        return more | {
            "report": report.to_json(),
            "plan": decision.plan.to_json(),
            "plan_id": decision.plan.plan_id,
            "stock_kv_tokens": decision.stock_kv_tokens,
            "differences": differences(decision.plan, report),
            "outputs": outputs,
            "stats": asdict(stats),
            "mean_acceptance_length": stats.mean_acceptance_length,
        }
    finally:
        await engine.stop()


async def asked_then(engine: VLLMEngine, task: dict[str, Any], before: EngineStats) -> dict[str, Any]:
    """What it came to, without what the engine had done before."""
    outputs, now = await generate(engine, task), await engine.stats()
    accepted, drafts = now.accepted_tokens - before.accepted_tokens, now.drafts - before.drafts
    return {"outputs": outputs, "mean_acceptance_length": 1 + accepted / drafts}


async def generate(engine: VLLMEngine, task: dict[str, Any]) -> list[list[int]]:
    """Greedy token ids of the held-out prompts, through vLLM's own OpenAI app.

    One at a time: another batch shape may round a near-tie differently, and then tokens differ for no fault of a plan.
    """
    transport = httpx.ASGITransport(app=engine.app)
    outputs = []
    async with httpx.AsyncClient(transport=transport, base_url="http://engine", timeout=600) as client:
        for prompt in held_out_prompts(PROMPTS, PROMPT_SEED)[: task.get("prompts", 0)]:
            body = {
                "model": "demo",
                "messages": prompt.messages,
                "temperature": task.get("temperature", 0),
                "return_token_ids": True,
            }
            body["max_tokens"] = task.get("max_tokens", 160)
            answer = await client.post("/v1/chat/completions", json=body)
            answer.raise_for_status()
            outputs.append(answer.json()["choices"][0]["token_ids"])
    return outputs
