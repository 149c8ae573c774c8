"""What Ray Serve is told so that the policies run."""

import warnings
from collections.abc import Sequence
from typing import Any

from ray.serve.config import AutoscalingConfig, AutoscalingPolicy

from deployments.autoscaling.facts import PoolFacts
from deployments.autoscaling.policy import IngressPolicy, PoolPolicy

FIGURES_PERIOD_S = 2.0
"""Seconds between two reports of a replica to the controller."""

WINDOW_S = 6.0
"""Seconds of points that a report holds. Policies read the newest alone."""


def pool_autoscaling(
    name: str, facts: Sequence[PoolFacts], *, utilisation: float, start_patience_s: float, **bounds: Any
) -> AutoscalingConfig:
    """For the deployment of pool `name`; `facts` of all pools that serve its model.

    `bounds`: min_replicas, max_replicas, upscale_delay_s, downscale_delay_s of AutoscalingConfig.
    """
    (model,) = {one.model for one in facts if one.name == name}
    policy = AutoscalingPolicy(
        policy_function=PoolPolicy,
        policy_kwargs={
            "pool": name,
            "pools": [one.to_json() for one in facts if one.model == model],
            "utilisation": utilisation,
            "start_patience_s": start_patience_s,
        },
    )
    return _config(policy, **bounds)


def ingress_autoscaling(num_replicas: int) -> AutoscalingConfig:
    """For the ingress: always `num_replicas`, but with figures and with a policy that reads them."""
    policy = AutoscalingPolicy(policy_function=IngressPolicy)
    return _config(policy, min_replicas=num_replicas, max_replicas=num_replicas)


def _config(policy: AutoscalingPolicy, **options: Any) -> AutoscalingConfig:
    with warnings.catch_warnings():
        # The field is to be replaced by an environment variable of the whole cluster; until then it is what counts.
        warnings.simplefilter("ignore", DeprecationWarning)
        return AutoscalingConfig(
            policy=policy, metrics_interval_s=FIGURES_PERIOD_S, look_back_period_s=WINDOW_S, **options
        )
