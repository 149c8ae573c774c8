"""One pool: replicas of one GPU kind, and how their engines differ from the model's others."""

from typing import Any, Literal

from pydantic import ValidationInfo, field_validator
from ray._private.label_utils import validate_label_selector

from deployments.config_fields import Section, Size, live, one_kv_memory, replace, replan
from deployments.engine_options import EngineOptions
from hybrid_serve.facts.capabilities import DEFAULT_VLLM

OVERRIDING = ("tensor_parallel_size", "gpu_memory_utilization", "kv_memory")
"""Fields of a pool that stand for the engine's of the same name."""

AGREED = ("implementation", "policy", "max_model_len")
"""Engine options that all pools of a model share."""

INGRESS = "ingress"
"""Name of the ingress's deployment, which no pool may have."""


class PoolConfig(Section):
    """Replicas of one GPU kind."""

    name: str = replace("default", "Name of the pool; also of its Ray Serve deployment.", pattern=r"^[A-Za-z0-9_.-]+$")
    device: Literal["auto", "cuda", "cpu"] = replace("auto", "`auto`: cuda if the building machine has a GPU.")
    num_cpus: float = replace(1.0, "CPUs that Ray reserves for each replica.", ge=0)
    num_gpus: float | None = replace(
        None, "GPUs that Ray reserves for each replica. Default: tensor_parallel_size on cuda, 0 on a CPU.", ge=0
    )
    accelerator_type: str | None = replace(
        None,
        "GPU kind that replicas need, e.g. `H200`: planned for its memory, placed by Ray's label "
        "`ray.io/accelerator-type`. Default: any GPU.",
    )
    label_selector: dict[str, str] = replace(
        {}, "Ray node labels that replicas need; they win over the label that `accelerator_type` stands for."
    )
    resources: dict[str, float] = replace({}, "Further Ray resources that each replica reserves.")
    env: dict[str, str] = replace({}, "Environment variables of the replicas.")
    image_uri: str | None = replace(
        None, "Container image that replicas run in (Ray's `image_uri`, with podman). Default: the node's environment."
    )
    vllm: str | None = replace(
        None, "vLLM version of the image or the nodes, which the plan is for. Default: the one this package pins."
    )
    tensor_parallel_size: int | None = replace(None, "Instead of the engine's, in this pool.", ge=1)
    gpu_memory_utilization: float | None = replan(None, "Instead of the engine's, in this pool.", gt=0, le=1)
    kv_memory: Size | None = replan(None, "Instead of the engine's, in this pool.")
    engine: dict[str, Any] = replan(
        {}, "Engine options that differ in this pool; `vllm_args` are added to the engine's."
    )
    cost: float = live(
        1.0, "What one replica costs an hour, relative to the other pools: autoscaling adds the cheapest first.", gt=0
    )
    min_replicas: int = live(1, "Replicas without load.", ge=0)
    max_replicas: int = live(1, "Replicas under load.", ge=1)
    target_ongoing_requests: float | None = live(
        None,
        "Requests per replica that autoscaling aims at where they run out before KV memory does. Default: "
        "`scaling.utilisation` of what it is given at once: max_num_seqs, or max_ongoing_requests less 8.",
        gt=0,
    )
    max_ongoing_requests: int | None = live(
        None,
        "Requests a replica holds at once, 8 of them without KV memory (/v1/models, ...). Default: the engine's "
        "max_num_seqs and a quarter more, plus 8.",
        ge=1,
    )
    upscale_delay_s: float = live(10.0, "Seconds of high load before a replica is added.", ge=0)
    downscale_delay_s: float = live(300.0, "Seconds of low load before a replica is removed.", ge=0)
    start_attempts: int = live(2, "Times a replica is tried before the deployment is called failed.", ge=1)
    graceful_shutdown_timeout_s: float = live(60.0, "Seconds that running requests get when a replica stops.", ge=0)
    health_check_period_s: float = live(
        5.0, "Seconds between looks at a replica's engine; one that fails three times is replaced.", gt=0
    )
    negotiation_timeout_s: float = live(15.0, "Seconds a replica waits for the planner; then it plans alone.", gt=0)

    @field_validator("name")
    @classmethod
    def _not_the_ingress(cls, value: str) -> str:
        if value == INGRESS:
            raise ValueError(f"{INGRESS!r} is the deployment in front of the pools: take another name")
        return value

    @field_validator("num_gpus", "accelerator_type")
    @classmethod
    def _no_gpu_on_a_cpu(cls, value: Any, info: ValidationInfo) -> Any:
        if value and info.data.get("device") == "cpu":
            raise ValueError("the pool's device is cpu: remove this, or set device to cuda")
        return value

    @field_validator("label_selector")
    @classmethod
    def _as_ray_takes_it(cls, value: dict[str, str]) -> dict[str, str]:
        if refused := validate_label_selector(value):
            raise ValueError(refused)
        return value

    _one_way_to_say_it = field_validator("kv_memory")(one_kv_memory)

    @field_validator("engine")
    @classmethod
    def _as_engine_options(cls, value: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        """Checked as the engine section is; its mistakes are told with their places."""
        if shared := [name for name in AGREED if name in value]:
            raise ValueError(f"all pools of a model share {', '.join(shared)}: set it in the model's engine section")
        if twice := [name for name in OVERRIDING if name in value and info.data.get(name) is not None]:
            raise ValueError(f"{', '.join(twice)} is set in the pool itself too: set one of them")
        return EngineOptions.model_validate(value).model_dump(exclude_unset=True)

    @field_validator("max_replicas")
    @classmethod
    def _not_below_the_least(cls, value: int, info: ValidationInfo) -> int:
        least = info.data.get("min_replicas", 0)
        if value < least:
            raise ValueError(f"below min_replicas, which is {least}")
        return value

    @property
    def release(self) -> str:
        """The vLLM release that this pool's plan is for."""
        return self.vllm or DEFAULT_VLLM

    def engine_options(self, base: EngineOptions) -> EngineOptions:
        """The engine options that hold in this pool: the model's, with the pool's own over them.

        `kv_memory` and `gpu_memory_utilization` are two ways to say one thing: the pool's takes the other's place.
        """
        own = {name: value for name in OVERRIDING if (value := getattr(self, name)) is not None}
        changes = {**self.engine, **own}
        if not changes:
            return base
        values = {name: getattr(base, name) for name in base.model_fields_set}
        if "kv_memory" in changes:
            values.pop("gpu_memory_utilization", None)
        if "gpu_memory_utilization" in changes:
            values.pop("kv_memory", None)
        if "vllm_args" in changes:
            changes["vllm_args"] = {**base.vllm_args, **changes["vllm_args"]}
        return EngineOptions.model_validate(values | changes)
