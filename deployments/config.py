"""What a user can configure, and what a change to it costs.

Every field says in `json_schema_extra["change"]` whether Ray Serve takes a new value in place (`light`) or
starts the replicas of that deployment again (`restart`).
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from deployments.sizes import parse_size

Size = Annotated[int, BeforeValidator(parse_size)]

DEMO_TARGET = "demo:target"
DEMO_DRAFT = "demo:draft"
MTP = "mtp"
"""The drafter that stands for the target's own MTP modules."""

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


def _restart(default: Any, description: str, **constraints: Any) -> Any:
    return Field(default, description=description, json_schema_extra={"change": "restart"}, **constraints)


def _light(default: Any, description: str, **constraints: Any) -> Any:
    return Field(default, description=description, json_schema_extra={"change": "light"}, **constraints)


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ModelConfig(_Section):
    """The pair that is served. Without a target: the shipped demo pair."""

    name: str | None = _restart(None, "Name clients use; default: the target as given, `demo` for the demo pair.")
    target: str | None = _restart(None, "Folder, hub id (`Qwen/Qwen3.5-35B-A3B`) or `demo:target`. Default: the demo.")
    target_revision: str | None = _restart(None, "Hub commit or branch of the target; not for folders.")
    drafter: str | None = _restart(
        None, "Folder, hub id or `demo:draft`. Default: the demo's if `target` is not set either, otherwise none."
    )
    drafter_revision: str | None = _restart(None, "Hub commit or branch of the drafter; not for folders.")

    @model_validator(mode="before")
    @classmethod
    def _demo_is_the_default(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        if values.get("target") is None:
            values = {**values, "target": DEMO_TARGET, "drafter": values.get("drafter") or DEMO_DRAFT}
        if values.get("name") is None:
            target = values["target"]
            values = {**values, "name": "demo" if target == DEMO_TARGET else target}
        return values


class EngineOptions(_Section):
    """How each replica's vLLM engine runs."""

    implementation: Literal["vllm", "fake"] = _restart(
        "vllm", "`fake` answers without a model: a dry run of the cluster, and for tests."
    )
    policy: Literal["best", "stock"] = _restart(
        "best", "`best`: the planner's KV plan; `stock`: what vLLM does unaided, for comparisons."
    )
    num_speculative_tokens: int | None = _restart(
        None,
        "K, tokens drafted per step. Default: the largest that the drafter was trained for; 0 without one.",
        ge=0,
    )
    max_model_len: int = _restart(8192, "Longest request, prompt and output, in tokens.", ge=1)
    max_num_batched_tokens: int = _restart(8192, "Tokens of one engine step.", ge=1)
    max_num_seqs: int = _restart(256, "Requests of one engine step.", ge=1)
    prefix_caching: bool = _restart(False, "Reuse the KV blocks of equal prompt beginnings.")
    kv_dtype: Literal["auto", "bf16", "fp8"] = _restart("auto", "Of the target's KV cache; `auto`: the model's.")
    draft_kv_dtype: Literal["auto", "bf16", "fp8"] = _restart("auto", "Of the drafter's KV cache; `auto`: its own.")
    mamba_ssm_cache_dtype: Literal["auto", "float32", "float16", "bfloat16"] = _restart(
        "auto", "Of the recurrent states; `auto`: float32 on a CPU, which needs it, otherwise the model's choice."
    )
    tensor_parallel_size: int = _restart(1, "GPUs that the layers of one replica are split over.", ge=1)
    gpu_memory_utilization: float | None = _restart(
        None, "Share of GPU memory vLLM may use, 0 to 1. Default: vLLM's. Not together with `kv_memory`.", gt=0, le=1
    )
    kv_memory: Size | None = _restart(None, "Memory for the KV cache on one device, e.g. `1GiB`; needed on a CPU.")
    vllm_args: dict[str, Any] = _restart(
        {}, "Further vLLM engine arguments, named as in `AsyncEngineArgs`; they may not repeat a field above."
    )

    @field_validator("kv_memory")
    @classmethod
    def _one_way_to_say_it(cls, value: int | None, info: ValidationInfo) -> int | None:
        if value is not None and info.data.get("gpu_memory_utilization") is not None:
            raise ValueError("gpu_memory_utilization decides the KV memory too: set one of them")
        return value

    @field_validator("vllm_args")
    @classmethod
    def _no_second_way(cls, value: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        clashes = {name: _OWN_FIELD.get(name.replace("-", "_")) for name in value}
        told = [f"{name} (set {field})" for name, field in clashes.items() if field]
        if told and info.data.get("implementation") != "fake":
            raise ValueError(f"the KV plan depends on {', '.join(told)}: not here")
        return value


class Context(_Section):
    """One length of request and how common it is."""

    tokens: int = _light(..., "Prompt and output of one request, in tokens.", ge=1)
    weight: float = _light(1.0, "How common it is, relative to the other contexts.", gt=0)


class WorkloadConfig(_Section):
    """What the replicas will be asked: plans and autoscaling are made for it."""

    contexts: tuple[Context, ...] = _restart((), "Request lengths with weights. Default: one of max_model_len tokens.")


class PoolConfig(_Section):
    """Replicas of one GPU kind."""

    name: str = _restart("default", "Name of the pool; also of its Ray Serve deployment.", pattern=r"^[A-Za-z0-9_.-]+$")
    device: Literal["auto", "cuda", "cpu"] = _restart("auto", "`auto`: cuda if the building machine has a GPU.")
    num_cpus: float = _restart(1.0, "CPUs that Ray reserves for each replica.", ge=0)
    num_gpus: float | None = _restart(
        None, "GPUs that Ray reserves for each replica. Default: tensor_parallel_size on cuda, 0 on a CPU.", ge=0
    )
    accelerator_type: str | None = _restart(
        None, "Ray's accelerator type that replicas need, e.g. `H200`. Default: any GPU."
    )
    resources: dict[str, float] = _restart({}, "Further Ray resources that each replica reserves.")
    env: dict[str, str] = _restart({}, "Environment variables of the replicas.")
    min_replicas: int = _light(1, "Replicas without load.", ge=0)
    max_replicas: int = _light(1, "Replicas under load.", ge=1)
    target_ongoing_requests: float | None = _light(
        None, "Requests per replica that autoscaling aims at. Default: 80 % of the planned concurrency.", gt=0
    )
    max_ongoing_requests: int | None = _light(
        None, "Requests a replica holds at once. Default: the planned concurrency and a quarter more, plus 8.", ge=1
    )
    upscale_delay_s: float = _light(10.0, "Seconds of high load before a replica is added.", ge=0)
    downscale_delay_s: float = _light(300.0, "Seconds of low load before a replica is removed.", ge=0)
    start_attempts: int = _light(2, "Times a replica is tried before the deployment is called failed.", ge=1)
    graceful_shutdown_timeout_s: float = _light(60.0, "Seconds that running requests get when a replica stops.", ge=0)
    health_check_period_s: float = _light(
        5.0, "Seconds between looks at a replica's engine; one that fails three times is replaced.", gt=0
    )
    negotiation_timeout_s: float = _restart(15.0, "Seconds a replica waits for the planner; then it plans alone.", gt=0)

    @field_validator("num_gpus", "accelerator_type")
    @classmethod
    def _no_gpu_on_a_cpu(cls, value: Any, info: ValidationInfo) -> Any:
        if value and info.data.get("device") == "cpu":
            raise ValueError("the pool's device is cpu: remove this, or set device to cuda")
        return value

    @field_validator("max_replicas")
    @classmethod
    def _not_below_the_least(cls, value: int, info: ValidationInfo) -> int:
        least = info.data.get("min_replicas", 0)
        if value < least:
            raise ValueError(f"below min_replicas, which is {least}")
        return value


class LimitsConfig(_Section):
    """What the ingress lets through."""

    max_body: Size = _light(32 * 2**20, "Largest request body, e.g. `32MiB`; larger ones are answered 413.")
    request_timeout_s: float = _light(3600.0, "Seconds from a request's arrival to its last byte.", gt=0)
    max_queued_requests: int = _light(1000, "Requests that wait for a replica; further ones are answered 503.", ge=1)


class IngressConfig(_Section):
    """The HTTP side."""

    num_replicas: int = _light(1, "Ingress replicas.", ge=1)
    num_cpus: float = _restart(0.0, "CPUs that Ray reserves for each.", ge=0)
    access_log: bool = _restart(False, "Log a line per request; it costs about as much as forwarding ten chunks.")
    max_ongoing_requests: int = _light(10_000, "Requests one ingress replica forwards at once.", ge=1)


class AppConfig(_Section):
    """One app: one model name, served by a pool of replicas."""

    model: ModelConfig = Field(default_factory=ModelConfig, validate_default=True, description="The pair.")
    engine: EngineOptions = Field(default_factory=EngineOptions, description="Each replica's engine.")
    workload: WorkloadConfig = Field(default_factory=WorkloadConfig, description="What it will be asked.")
    pool: PoolConfig = Field(default_factory=PoolConfig, description="The replicas.")
    limits: LimitsConfig = Field(default_factory=LimitsConfig, description="What the ingress lets through.")
    ingress: IngressConfig = Field(default_factory=IngressConfig, description="The HTTP side.")
