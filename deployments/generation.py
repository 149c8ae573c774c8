"""A configuration as a generation: planned, pinned to commits, and named by digests that are the same everywhere."""

import hashlib
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from deployments.config import AppConfig, PoolConfig, ReplicaConfig, ServedModel
from deployments.config_fields import change_of
from deployments.fleet import BoundPool, PlannedModel, PlannedPool, PoolProblem, bound_pool, plan_model
from deployments.pool_config import OVERRIDING
from hybrid_serve.facts.device import DeviceFacts
from hybrid_serve.negotiation.agreement import Agreement, agree
from hybrid_serve.plan.workload import mean_concurrency
from hybrid_serve.rollout.wire import GenerationOffer, PoolOffer

_FORMAT = 1
"""Of what digests are made over: another one makes other digests of the same configuration."""


@dataclass(frozen=True, kw_only=True)
class Problems:
    """Why a configuration can't be deployed: everything that is wrong with any pool of any model.

    `models` are all of them, so that what can be planned can be shown beside what can't.
    """

    models: tuple[PlannedModel, ...]

    @property
    def all(self) -> tuple[tuple[str, PoolProblem], ...]:
        """(model, problem)."""
        return tuple((model.name, problem) for model in self.models for problem in model.problems)

    def to_json(self) -> list[dict[str, Any]]:
        return [{"model": model, **asdict(problem)} for model, problem in self.all]

    def __str__(self) -> str:
        several = len(self.models) > 1
        told = [f"model {model}, {problem}" if several else str(problem) for model, problem in self.all]
        return told[0] if len(told) == 1 else f"{len(told)} problems:\n" + "\n".join(f"- {text}" for text in told)


def offer_of(
    config: AppConfig, app: str, measured: Mapping[str, DeviceFacts] | None = None
) -> GenerationOffer | Problems:
    """The generation that a configuration is, with every pool planned; or all that keeps it from being deployed.

    Reads the checkpoints' outlines (never weights), and asks the hub which commits are meant.

    Args:
        app: Ray Serve's name of the application. It is no part of the digest.
        measured: by pool, the device that its running replicas measured; otherwise what is known on this machine.
    """
    models = tuple(plan_model(served, measured) for served in config.served)
    if any(model.problems for model in models):
        return Problems(models=models)
    pinned = _pinned(config, models)
    digest = _digest(_whole(pinned, models))
    return GenerationOffer(
        app=app,
        digest=digest,
        config=pinned.model_dump(mode="json", exclude_unset=True),
        pools={pool.name: _pool_offer(pool, model, digest) for model in models for pool in model.pools},
        built_at=time.time(),
    )


def config_of(offer: GenerationOffer) -> AppConfig:
    """The configuration that an offer was made of, with hub ids at their commits."""
    return AppConfig.model_validate(offer.config)


@dataclass(frozen=True, kw_only=True)
class BoundModel:
    """One model of a generation, as it is deployed."""

    name: str
    pools: tuple[BoundPool, ...]


def bound_models(offer: GenerationOffer) -> tuple[BoundModel, ...]:
    """What to deploy, from what the replicas of an offer are bound with: the same as when it was planned. Pure.

    Raises:
        ValueError: the pools of an offer of another release can't agree by this one's rules.
    """
    fleets = {one.config.fleet.generation: one.config.fleet for one in offer.pools.values()}
    agreements: dict[str, Agreement] = {}
    for name, fleet in fleets.items():
        agreement = agree(fleet)
        if not isinstance(agreement, Agreement):
            raise ValueError(f"generation {offer.digest} was agreed on by another release: {agreement}")
        agreements[name] = agreement
    pools: dict[str, list[BoundPool]] = {}
    for one in offer.pools.values():
        bound = bound_pool(one.config, agreements[one.config.fleet.generation])
        pools.setdefault(one.model, []).append(bound)
    return tuple(BoundModel(name=model, pools=tuple(of_model)) for model, of_model in pools.items())


def engine_digest(config: ReplicaConfig, agreement: Agreement) -> str:
    """16 hex digits over all that an engine of a pool depends on: with the same ones it need not start again.

    What only Ray Serve or the ingress look at (bounds, delays, costs) is not in it, nor what other pools declare, as
    long as all agree on the same.
    """
    return _digest(
        {
            "model": config.model.model_dump(mode="json"),
            "engine": config.engine.model_dump(mode="json"),
            "workload": config.workload.model_dump(mode="json"),
            "device": config.pool.device,
            "vllm": config.pool.release,
            "target": str(config.fleet.target_fingerprint),
            "drafter": str(config.fleet.drafter_fingerprint),
            "prefix_match_unit": agreement.prefix_match_unit,
        }
    )


def placement_digest(config: ReplicaConfig) -> str:
    """16 hex digits over all that only a new replica can have: the fields of a pool that are declared `replace`."""
    pool = config.pool.model_dump(mode="json")
    fixed = {name: pool[name] for name in PoolConfig.model_fields if change_of(PoolConfig, name) == "replace"}
    known = {"tensor_parallel_size": config.engine.tensor_parallel_size, "vllm": config.pool.release}
    return _digest({**fixed, **known, "model": config.model.name})


def _pool_offer(pool: PlannedPool, model: PlannedModel, digest: str) -> PoolOffer:
    assert model.agreement is not None, "a model without problems has agreed"
    plan = pool.decision.plan if pool.device.known else None
    return PoolOffer(
        model=model.name,
        config=replace(pool.config, generation=digest),
        engine_digest=engine_digest(pool.config, model.agreement),
        placement_digest=placement_digest(pool.config),
        plan_id=None if plan is None else plan.plan_id,
        kv_tokens=None if plan is None else plan.kv_tokens,
        concurrency=None if plan is None else round(mean_concurrency(plan, pool.inputs), 4),
        num_speculative_tokens=pool.inputs.settings.num_speculative_tokens,
    )


def _pinned(config: AppConfig, models: tuple[PlannedModel, ...]) -> AppConfig:
    """Hub ids at the commits that were read: all pools of a model are planned with the same ones."""
    pairs = [model.pools[0].config.model for model in models]
    if not config.models:
        return config.model_copy(update={"model": pairs[0]})
    served = (one.model_copy(update={"model": pair}) for one, pair in zip(config.models, pairs, strict=True))
    return config.model_copy(update={"models": tuple(served)})


def _whole(config: AppConfig, models: tuple[PlannedModel, ...]) -> dict[str, Any]:
    """All that a generation is, in one form whichever form the file has; how it goes out is no part of it."""
    fleets = {model.name: model.pools[0].config.fleet for model in models}
    sections = ("limits", "routing", "scaling", "ingress")
    return {
        "models": {
            served.name: {
                **_model(served),
                "target": str(fleets[served.name].target_fingerprint),
                "drafter": str(fleets[served.name].drafter_fingerprint),
            }
            for served in config.served
        },
        **{name: getattr(config, name).model_dump(mode="json") for name in sections},
    }


def _model(served: ServedModel) -> dict[str, Any]:
    return {
        "model": served.model.model_dump(mode="json"),
        "workload": served.workload.model_dump(mode="json"),
        "pools": dict(_pools(served)),
    }


def _pools(served: ServedModel) -> Iterator[tuple[str, dict[str, Any]]]:
    for one in served.served_pools:
        own = one.pool.model_dump(mode="json", exclude={"engine", *OVERRIDING})
        yield one.pool.name, {**own, "engine": one.engine.model_dump(mode="json")}


def _digest(value: dict[str, Any]) -> str:
    text = json.dumps({"format": _FORMAT, **value}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
