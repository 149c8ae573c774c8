"""The generation that an app runs, put together again from what the planner keeps of it."""

from typing import Any, NamedTuple

import ray
from ray.actor import ActorHandle

from deployments.config import ReplicaConfig
from deployments.generation import engine_digest, placement_digest
from deployments.rollout_requests import TIMEOUT_S, running_pools
from hybrid_serve.negotiation.agreement import Agreement, agree
from hybrid_serve.rollout.wire import GenerationOffer, PoolOffer


class RunningGeneration(NamedTuple):
    """Its number, and what was offered to the planner when it was new. `built_at` is not known: 0."""

    number: int
    offer: GenerationOffer


def running_generation(planner: ActorHandle[Any], app: str) -> RunningGeneration:
    """What is current. Blocks.

    Raises:
        ValueError: the planner does not know the app.
        Exception: whatever Ray raises if the planner can't be reached.
    """
    told = ray.get(planner.generation.remote(app, None), timeout=TIMEOUT_S)
    configs = running_pools(planner, app)
    pools = {name: _pool(config, told["pools"][name]) for name, config in configs.items()}
    offer = GenerationOffer(app=app, digest=told["digest"], config=told["config"], pools=pools, built_at=0.0)
    return RunningGeneration(told["number"], offer)


def _pool(config: ReplicaConfig, figures: dict[str, Any]) -> PoolOffer:
    agreement = agree(config.fleet)
    return PoolOffer(
        config=config,
        # What was agreed on by another release's rules, this one may refuse: then nothing equals it.
        engine_digest=engine_digest(config, agreement) if isinstance(agreement, Agreement) else "",
        placement_digest=placement_digest(config),
        **figures,
    )
