"""Builds models with the installed vLLM, without memory for weights, and prints the cache of every layer as JSON.

Run as a program, for it sets up a process group of one: reads a list of cases from stdin, each
`{"target": folder, "speculative": speculative_config or null}`, and answers with a list of layers a case, in the order
in which vLLM registered them: `[kind, page bytes of one token or of one state]`.
"""

import json
import os
import sys
from typing import Any

MAX_MODEL_LEN = 2048
SSM_DTYPE = "float32"


def layers_of(case: dict[str, Any]) -> list[tuple[str, int]]:
    import torch
    import vllm.config.vllm
    from vllm.config import set_current_vllm_config
    from vllm.config.utils import replace
    from vllm.engine.arg_utils import EngineArgs
    from vllm.model_executor.model_loader.utils import initialize_model

    # The V2 model runner, which does most drafting on CUDA, wants Triton; nothing is run here.
    vllm.config.vllm.HAS_TRITON = True
    method = (case["speculative"] or {}).get("method")
    os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "0" if method == "draft_model" else "1"
    config = EngineArgs(
        model=case["target"],
        skip_tokenizer_init=True,
        load_format="dummy",
        max_model_len=MAX_MODEL_LEN,
        enable_prefix_caching=False,
        mamba_ssm_cache_dtype=SSM_DTYPE,
        speculative_config=case["speculative"],
    ).create_engine_config()
    config.cache_config.mamba_block_size = MAX_MODEL_LEN
    drafter = config.speculative_config.draft_model_config if config.speculative_config else None
    with set_current_vllm_config(config):
        _one_process()
        with torch.device("meta"):
            initialize_model(config)
            if drafter is not None and method != "draft_model":
                initialize_model(config, model_config=drafter)
    if drafter is not None and method == "draft_model":
        drafting = replace(config, model_config=drafter, speculative_config=None)
        drafting.compilation_config = config.compilation_config
        with set_current_vllm_config(drafting), torch.device("meta"):
            initialize_model(drafting, prefix="draft_model")
    return [
        (type(spec).__name__, spec.page_size_bytes if not hasattr(spec, "num_kv_heads") else _one_token(spec))
        for layer in config.compilation_config.static_forward_context.values()
        if hasattr(layer, "get_kv_cache_spec") and (spec := layer.get_kv_cache_spec(config)) is not None
    ]


def _one_token(spec: Any) -> int:
    assert spec.page_size_bytes % spec.block_size == 0
    return int(spec.page_size_bytes // spec.block_size)


def _one_process() -> None:
    import torch
    from vllm.distributed import init_distributed_environment, initialize_model_parallel

    if not torch.distributed.is_initialized():
        with_file = f"file://{sys.argv[1]}"
        init_distributed_environment(1, 0, with_file, 0, "gloo")
        initialize_model_parallel(1, 1)


if __name__ == "__main__":
    os.environ["VLLM_LOGGING_LEVEL"] = "ERROR"
    os.environ["VLLM_PLUGINS"] = ""
    answers = [layers_of(case) for case in json.load(sys.stdin)]
    print(json.dumps(answers))
