"""What Ray Serve is told so that the policies run."""

import warnings
from collections.abc import Sequence
from typing import Any

from ray.serve.config import AutoscalingConfig, AutoscalingPolicy

from deployments.autoscaling.facts import PoolFacts
from deployments.autoscaling.policy import IngressPolicy, PoolPolicy
from deployments.fleet import BoundPool
from deployments.routing.limit import most_sequences
from hybrid_serve.plan.search import contexts_of

FIGURES_PERIOD_S = 2.0
"""Seconds between two reports of a replica to the controller."""

WINDOW_S = 6.0
"""Seconds of points that a report holds. Policies read the newest alone."""


def facts_of(planned: BoundPool, utilisation: float) -> PoolFacts:
    """What the controller needs to know of a pool."""
    inputs, pool = planned.inputs, planned.config.pool
    most: float = most_sequences(inputs.settings.max_num_seqs, planned.sizing.max_ongoing_requests)
    if pool.target_ongoing_requests is not None:
        most = min(most, pool.target_ongoing_requests / utilisation)
    known: dict[str, Any] = {
        "name": pool.name,
        "model": str(planned.config.model.name),
        "cost": pool.cost,
        "max_requests": most,
        "typical_tokens": sum(tokens * weight for tokens, weight in contexts_of(inputs)),
    }
    plan = planned.decision.plan
    if plan is None:
        return PoolFacts.guessed(planned.sizing.concurrency, **known)
    return PoolFacts.planned(plan, inputs, **known)


def pool_autoscaling(
    name: str,
    facts: Sequence[PoolFacts],
    *,
    utilisation: float,
    margin: float,
    start_patience_s: float,
    generation: str = "",
    **options: Any,
) -> AutoscalingConfig:
    """For the deployment of pool `name`; `facts` of all pools of its model.

    `generation`: see `deployments.autoscaling.policy`.
    `options`: min_replicas, max_replicas, upscale_delay_s, downscale_delay_s, ... of AutoscalingConfig.
    """
    policy = AutoscalingPolicy(
        policy_function=PoolPolicy,
        policy_kwargs={
            "generation": generation,
            "pool": name,
            "pools": [one.to_json() for one in facts],
            "utilisation": utilisation,
            "margin": margin,
            "start_patience_s": start_patience_s,
        },
    )
    return _config(policy, **options)


def ingress_autoscaling(num_replicas: int, generation: str = "") -> AutoscalingConfig:
    """For the ingress: always `num_replicas`, but with figures and with a policy that reads them."""
    policy = AutoscalingPolicy(policy_function=IngressPolicy, policy_kwargs={"generation": generation})
    return _config(policy, min_replicas=num_replicas, max_replicas=num_replicas)


def _config(policy: AutoscalingPolicy, **options: Any) -> AutoscalingConfig:
    with warnings.catch_warnings():
        # The field is to be replaced by an environment variable of the whole cluster; until then it is what counts.
        warnings.simplefilter("ignore", DeprecationWarning)
        return AutoscalingConfig(
            policy=policy, metrics_interval_s=FIGURES_PERIOD_S, look_back_period_s=WINDOW_S, **options
        )
