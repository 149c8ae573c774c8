"""Options of vLLM's engine, as a user configures them."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ValidationInfo, field_validator

from deployments.config_fields import Section, Size, one_kv_memory, replace, replan

FLEET = "fleet"
"""`max_model_len` that the pools agree on: the largest that every one of them can hold."""

# vLLM arguments that decide the KV cache: they have a field of their own, since the plan depends on them.
_OWN_FIELD = {
    "model": "model.target",
    "served_model_name": "model.name",
    "revision": "model.target_revision",
    "speculative_config": "model.drafter and engine.num_speculative_tokens",
    "max_model_len": "engine.max_model_len",
    "max_num_batched_tokens": "engine.max_num_batched_tokens",
    "max_num_seqs": "engine.max_num_seqs",
    "enable_prefix_caching": "engine.prefix_caching",
    "kv_cache_dtype": "engine.kv_dtype",
    "tensor_parallel_size": "engine.tensor_parallel_size",
    "gpu_memory_utilization": "engine.gpu_memory_utilization",
    "kv_cache_memory_bytes": "engine.kv_memory",
    "mamba_ssm_cache_dtype": "engine.mamba_ssm_cache_dtype",
}


def _length(value: Any) -> Any:
    if value == FLEET:
        return value
    number = int(value) if isinstance(value, str) and value.isdecimal() else value
    if not isinstance(number, int) or isinstance(number, bool) or number < 1:
        raise ValueError(f"{value!r} is no length: give tokens, 1 or more, or `{FLEET}` for what every pool can hold")
    return number


MaxModelLen = Annotated[int | Literal["fleet"], BeforeValidator(_length)]


class EngineOptions(Section):
    """How each replica's vLLM engine runs."""

    implementation: Literal["vllm", "fake"] = replan(
        "vllm", "`fake` answers without a model: a dry run of the cluster, and for tests."
    )
    policy: Literal["best", "stock"] = replan(
        "best", "`best`: the planner's KV plan; `stock`: what vLLM does unaided, for comparisons."
    )
    num_speculative_tokens: int | None = replan(
        None,
        "K, tokens drafted per step. Default: the largest that the drafter was trained for; 0 without one.",
        ge=0,
    )
    max_model_len: MaxModelLen = replan(
        8192,
        "Longest request, prompt and output, in tokens, the same in all pools. `fleet`: the largest that every pool "
        "holds, at most the model's own limit.",
    )
    max_num_batched_tokens: int = replan(8192, "Tokens of one engine step.", ge=1)
    max_num_seqs: int = replan(256, "Requests of one engine step.", ge=1)
    prefix_caching: bool = replan(False, "Reuse the KV blocks of equal prompt beginnings.")
    kv_dtype: Literal["auto", "bf16", "fp8"] = replan("auto", "Of the target's KV cache; `auto`: the model's.")
    draft_kv_dtype: Literal["auto", "bf16", "fp8"] = replan("auto", "Of the drafter's KV cache; `auto`: its own.")
    mamba_ssm_cache_dtype: Literal["auto", "float32", "float16", "bfloat16"] = replan(
        "auto", "Of the recurrent states; `auto`: float32 on a CPU, which needs it, otherwise the model's choice."
    )
    tensor_parallel_size: int = replace(1, "GPUs of one node that the layers of one replica are split over.", ge=1)
    gpu_memory_utilization: float | None = replan(
        None, "Share of GPU memory vLLM may use, 0 to 1. Default: vLLM's. Not together with `kv_memory`.", gt=0, le=1
    )
    kv_memory: Size | None = replan(None, "Memory for the KV cache on one device, e.g. `1GiB`; needed on a CPU.")
    vllm_args: dict[str, Any] = replan(
        {}, "Further vLLM engine arguments, named as in `AsyncEngineArgs`; they may not repeat a field above."
    )

    _one_way_to_say_it = field_validator("kv_memory")(one_kv_memory)

    @field_validator("vllm_args")
    @classmethod
    def _no_second_way(cls, value: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        clashes = {name: _OWN_FIELD.get(name.replace("-", "_")) for name in value}
        told = [f"{name} (set {field})" for name, field in clashes.items() if field]
        if told and info.data.get("implementation") != "fake":
            raise ValueError(f"the KV plan depends on {', '.join(told)}: not here")
        return value
