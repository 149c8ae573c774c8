"""What a user can configure: one app, of one or several models, each served by its pools.

What a change to a field costs is declared on the field, see `deployments.config_fields`.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pydantic import Field, ValidationInfo, field_validator, model_validator

from deployments.config_fields import Section, Size, live, replace, replan
from deployments.engine_options import FLEET, EngineOptions
from deployments.pool_config import PoolConfig
from deployments.rollout_config import RolloutConfig
from hybrid_serve.negotiation.agreement import FleetFacts
from hybrid_serve.plan.inputs import Prefer

__all__ = [
    "DEMO_DRAFT",
    "DEMO_TARGET",
    "FLEET",
    "MTP",
    "AppConfig",
    "Context",
    "EngineOptions",
    "IngressConfig",
    "LimitsConfig",
    "ModelConfig",
    "PoolConfig",
    "ReplicaConfig",
    "RolloutConfig",
    "RoutingConfig",
    "ScalingConfig",
    "ServedModel",
    "ServedPool",
    "WorkloadConfig",
]

DEMO_TARGET = "demo:target"
DEMO_DRAFT = "demo:draft"
MTP = "mtp"
"""The drafter that stands for the target's own MTP modules."""


class ModelConfig(Section):
    """The pair that is served. Without a target: the shipped demo pair."""

    name: str | None = replace(None, "Name clients use; default: the target as given, `demo` for the demo pair.")
    target: str | None = replan(None, "Folder, hub id (`Qwen/Qwen3.5-35B-A3B`) or `demo:target`. Default: the demo.")
    target_revision: str | None = replan(None, "Hub commit or branch of the target; not for folders.")
    drafter: str | None = replan(
        None, "Folder, hub id or `demo:draft`. Default: the demo's if `target` is not set either, otherwise none."
    )
    drafter_revision: str | None = replan(None, "Hub commit or branch of the drafter; not for folders.")

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


class Context(Section):
    """One length of request and how common it is."""

    tokens: int = replan(..., "Prompt and output of one request, in tokens.", ge=1)
    weight: float = replan(1.0, "How common it is, relative to the other contexts.", gt=0)


class WorkloadConfig(Section):
    """What the replicas will be asked: plans and autoscaling are made for it."""

    contexts: tuple[Context, ...] = replan((), "Request lengths with weights. Default: one of max_model_len tokens.")
    prefer: Prefer = replan(
        "capacity", "`capacity` gives up next to no KV memory for fewer groups, `speed` at most 5 %."
    )


class LimitsConfig(Section):
    """What the ingress lets through."""

    max_body: Size = live(32 * 2**20, "Largest request body, e.g. `32MiB`; larger ones are answered 413.")
    request_timeout_s: float = live(3600.0, "Seconds from a request's arrival to its last byte.", gt=0)
    max_queued_requests: int = live(
        1000, "Requests of a model that wait for room, per ingress replica; further ones are answered 503.", ge=1
    )
    max_queue_s: float = live(
        30.0, "Seconds that a request may wait for room, over all attempts; then it is answered 503.", gt=0
    )
    retries: int = live(2, "Further replicas that a request is tried on while no byte of its answer is sent.", ge=0)


class RoutingConfig(Section):
    """How requests are spread over replicas."""

    sticky_margin: float = live(
        0.25,
        "Share of a replica's KV blocks, 0 to 1: by how much more it may be in use than the emptiest one, and still be "
        "given the prompts whose beginning it has.",
        ge=0,
        le=1,
    )
    stats_period_s: float = live(1.0, "Seconds between two reports of a replica's KV in use.", gt=0)


class ScalingConfig(Section):
    """When replicas are added and taken away. Bounds, delays and costs are the pools'."""

    utilisation: float = live(
        0.8,
        "Share of a replica's KV tokens, 0 to 1, above which another is added: a new one takes a model load.",
        gt=0,
        le=1,
    )
    margin: float = live(
        0.1, "By how much `utilisation` must be undercut by the rest before a replica is taken away.", ge=0, lt=1
    )
    start_patience_s: float = live(
        600.0, "Seconds without a newcomer after which missing replicas are made up for by other pools.", gt=0
    )

    @field_validator("margin")
    @classmethod
    def _below_the_utilisation(cls, value: float, info: ValidationInfo) -> float:
        utilisation = info.data.get("utilisation", 1.0)
        if value >= utilisation:
            raise ValueError(f"not below utilisation, which is {utilisation:g}: no replica would ever be taken away")
        return value


class IngressConfig(Section):
    """The HTTP side."""

    num_replicas: int = live(1, "Ingress replicas.", ge=1)
    num_cpus: float = replace(0.0, "CPUs that Ray reserves for each.", ge=0)
    access_log: bool = live(False, "Log a line per request; it costs about as much as forwarding ten chunks.")
    max_ongoing_requests: int = live(10_000, "Requests one ingress replica forwards at once.", ge=1)


@dataclass(frozen=True, kw_only=True)
class ServedPool:
    """One pool of one model, with the engine options that hold in it."""

    model: ModelConfig
    engine: EngineOptions
    workload: WorkloadConfig
    pool: PoolConfig


@dataclass(frozen=True, kw_only=True)
class ReplicaConfig(ServedPool):
    """What one replica is bound with.

    Attributes:
        engine: `max_model_len` is a number here, as the pools agreed on it when the app was built.
        fleet: what all pools of the model declare.
        generation: digest of the configuration that this is a part of (`deployments.generation`); empty outside an app.
    """

    fleet: FleetFacts
    generation: str = ""


def _one_of_pool_and_pools(value: tuple[PoolConfig, ...], info: ValidationInfo) -> tuple[PoolConfig, ...]:
    if value and info.data.get("pool") is not None:
        raise ValueError("pool is the short form for one pool: set pool or pools")
    if twice := _repeated(pool.name for pool in value):
        raise ValueError(f"two pools are named {', '.join(twice)}: give each a name of its own")
    return value


class ServedModel(Section):
    """One model name and the pools that serve it."""

    model: ModelConfig = Field(default_factory=ModelConfig, validate_default=True, description="The pair.")
    engine: EngineOptions = Field(default_factory=EngineOptions, description="Each replica's engine.")
    workload: WorkloadConfig = Field(default_factory=WorkloadConfig, description="What it will be asked.")
    pool: PoolConfig | None = Field(None, description="The replicas, if they are all of one kind.")
    pools: tuple[PoolConfig, ...] = Field((), description="The replicas, a pool for each kind.")

    _pools = field_validator("pools")(_one_of_pool_and_pools)

    @property
    def name(self) -> str:
        """The name clients use."""
        return str(self.model.name)

    @property
    def served_pools(self) -> tuple[ServedPool, ...]:
        """The pools with their own engine options; one of defaults if none is configured."""
        return tuple(
            ServedPool(model=self.model, engine=pool.engine_options(self.engine), workload=self.workload, pool=pool)
            for pool in self.pools or (self.pool or PoolConfig(),)
        )


class AppConfig(Section):
    """One app. `model`, `engine`, `workload` and `pool` or `pools` for one model, or `models` for several.

    Code that serves looks at `served` only, which is the same for all of these forms.
    """

    model: ModelConfig | None = Field(None, description="The pair; None with `models`.")
    engine: EngineOptions | None = Field(None, description="Each replica's engine; None with `models`.")
    workload: WorkloadConfig | None = Field(None, description="What it will be asked; None with `models`.")
    pool: PoolConfig | None = Field(None, description="The replicas, if they are all of one kind.")
    pools: tuple[PoolConfig, ...] = Field((), description="The replicas, a pool for each kind.")
    models: tuple[ServedModel, ...] = Field((), description="Several models, each with pools of its own.")
    limits: LimitsConfig = Field(default_factory=LimitsConfig, description="What the ingress lets through.")
    routing: RoutingConfig = Field(default_factory=RoutingConfig, description="How requests are spread.")
    scaling: ScalingConfig = Field(default_factory=ScalingConfig, description="When replicas come and go.")
    ingress: IngressConfig = Field(default_factory=IngressConfig, description="The HTTP side.")
    rollout: RolloutConfig = Field(default_factory=RolloutConfig, description="How a changed configuration goes out.")

    _pools = field_validator("pools")(_one_of_pool_and_pools)

    @model_validator(mode="before")
    @classmethod
    def _sections_of_one_model(cls, values: Any) -> Any:
        """Sections that are left out have their defaults, except beside `models`."""
        if not isinstance(values, dict) or values.get("models"):
            return values
        missing = [name for name in ("model", "engine", "workload") if values.get(name) is None]
        if not values.get("pools") and values.get("pool") is None:
            missing.append("pool")
        return {**values, **{name: {} for name in missing}}

    @field_validator("models")
    @classmethod
    def _models_stand_alone(cls, value: tuple[ServedModel, ...], info: ValidationInfo) -> tuple[ServedModel, ...]:
        beside = [name for name in ("model", "engine", "workload", "pool", "pools") if info.data.get(name)]
        if value and beside:
            raise ValueError(f"beside models there is {', '.join(beside)}: move it into each of the models")
        if twice := _repeated(served.name for served in value):
            raise ValueError(f"two models are named {', '.join(twice)}: set model.name")
        if twice := _repeated(pool.pool.name for served in value for pool in served.served_pools):
            raise ValueError(f"two pools are named {', '.join(twice)}: pools of all models need names of their own")
        return value

    @property
    def served(self) -> tuple[ServedModel, ...]:
        """Every model with its pools in `pools`, whichever form the configuration has."""
        models = self.models or (
            ServedModel.model_construct(
                model=self.model, engine=self.engine, workload=self.workload, pool=self.pool, pools=self.pools
            ),
        )
        return tuple(
            model.model_copy(update={"pool": None, "pools": tuple(p.pool for p in model.served_pools)})
            for model in models
        )


def _repeated(names: Iterable[str]) -> list[str]:
    return [name for name, count in Counter(names).items() if count > 1]
