"""What one vLLM release makes of our engine arguments, with the plugin in its process, before a weight is read.

    python started_config.py QUESTION       the release's package and ours are on PYTHONPATH; prints one JSON line

The release's own argument parser, EngineArgs and VllmConfig, on its CPU platform, for the demo pair.
"""

import json
import pickle
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import vllm
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.model_executor.models import registry
from vllm.usage.usage_lib import UsageContext
from vllm.v1.engine.async_llm import AsyncLLM

from hybrid_serve.demo.geometry import DRAFT_DIR, TARGET_DIR
from hybrid_serve.engine.base import EngineConfig
from hybrid_serve.engine.plugin import patched, register
from hybrid_serve.engine.resolve import settings_of
from hybrid_serve.engine.stats import StatsCollector
from hybrid_serve.engine.vllm_engine import server_arguments
from hybrid_serve.facts.assemble import plan_inputs
from hybrid_serve.facts.checkpoint import read_drafter, read_target
from hybrid_serve.facts.probe import measure_device
from hybrid_serve.plan.decide import decide
from hybrid_serve.plan.inputs import EngineSettings

CLIENT_METHODS = ("collective_rpc", "get_supported_tasks", "check_health", "shutdown")


def configured(question: dict[str, Any]) -> dict[str, Any]:
    register()
    drafter_path = str(sliding_drafter(Path(question["folder"])) if question["sliding"] else DRAFT_DIR)
    target, drafter = read_target(str(TARGET_DIR), mamba_ssm_cache_dtype="float32"), read_drafter(drafter_path)
    settings = EngineSettings(
        num_speculative_tokens=7,
        max_model_len=2048,
        max_num_batched_tokens=2048,
        max_num_seqs=16,
        async_scheduling=False,
    )
    inputs = plan_inputs(
        target=target,
        drafter=drafter,
        settings=settings,
        device=measure_device("cpu"),
        kv_memory_bytes=1 << 30,
        vllm=vllm.__version__.split("+")[0],
    )
    plan = decide(inputs).plan
    assert plan is not None
    arguments = server_arguments(
        EngineConfig(
            model_name="demo",
            target_path=str(TARGET_DIR),
            drafter_path=drafter_path,
            target=target,
            drafter=drafter,
            # A dtype that needs no option of its own: it must not be passed to a release that has none.
            settings=replace(settings, draft_kv_dtype="bf16"),
            plan=plan,
            engine_args={"enforce_eager": True},
        )
    )
    made = AsyncEngineArgs.from_cli_args(arguments).create_engine_config(usage_context=UsageContext.OPENAI_API_SERVER)
    made = pickle.loads(pickle.dumps(made))  # the way to the engine core
    drafter_config = made.speculative_config.draft_model_config.hf_config
    fed = getattr(drafter_config, "eagle_aux_hidden_state_layer_ids", None)
    hashed = made.speculative_config.compute_hash()
    drafter_config.eagle_aux_hidden_state_layer_ids = [1]
    StatsCollector(7).logger_factory()(made, 0)
    assert all(
        hasattr(AsyncLLM, name) for name in ("collective_rpc", "get_supported_tasks", "check_health", "shutdown")
    )
    return {
        "vllm": vllm.__version__,
        "patched": patched(),
        "plan": made.additional_config["hybrid_serve"]["plan"],
        "planned": plan.to_json(),
        "settings": asdict(settings_of(made)),
        "wanted": asdict(settings),
        "extension": made.parallel_config.worker_extension_cls,
        "fed_after": fed,
        "ids_are_hashed": hashed != made.speculative_config.compute_hash(),
        "publishes_capacity": hasattr(made.cache_config, "kv_cache_size_tokens"),
        "gdn_prefill": settings_of(with_gdn_prefill(made)).gdn_prefill_backend,
    }


def with_gdn_prefill(made: Any) -> Any:
    """The configuration after `--gdn-prefill-backend triton`, which EngineArgs puts into `additional_config`."""
    return SimpleNamespace(
        **{name: getattr(made, name) for name in ("cache_config", "scheduler_config", "speculative_config")},
        parallel_config=made.parallel_config,
        model_config=made.model_config,
        num_speculative_tokens=made.num_speculative_tokens,
        additional_config={**made.additional_config, "gdn_prefill_backend": "triton"},
    )


def sliding_drafter(folder: Path) -> Path:
    """The demo drafter with one of its two layers sliding."""
    values = json.loads((Path(DRAFT_DIR) / "config.json").read_text())
    values |= {
        "layer_types": ["sliding_attention", "full_attention"],
        "use_sliding_window": True,
        "sliding_window": 512,
    }
    for file in Path(DRAFT_DIR).iterdir():
        if file.name != "config.json":
            (folder / file.name).symlink_to(file)
    (folder / "config.json").write_text(json.dumps(values))
    return folder


def inspected_here(inspect: Callable[[], Any]) -> Any:
    """vLLM looks at a model's class in a process of its own, to keep CUDA out of this one: 6 s a model."""
    return inspect()


if __name__ == "__main__":
    assert callable(registry._run_in_subprocess)
    registry._run_in_subprocess = inspected_here
    print(json.dumps(configured(json.loads(sys.argv[1]))))
