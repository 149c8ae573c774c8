"""What the ingress lets through, as it reaches a running ingress: `limits` in its `user_config`."""

from dataclasses import dataclass

from deployments.config import AppConfig


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Fields of `limits` and `routing` in the configuration (`deployments.config`) that change in place."""

    max_body: int
    request_timeout_s: float
    max_queued_requests: int
    max_queue_s: float
    retries: int
    sticky_margin: float


def limits_of(config: AppConfig) -> Limits:
    """Of one app, from its two sections."""
    return Limits(
        max_body=config.limits.max_body,
        request_timeout_s=config.limits.request_timeout_s,
        max_queued_requests=config.limits.max_queued_requests,
        max_queue_s=config.limits.max_queue_s,
        retries=config.limits.retries,
        sticky_margin=config.routing.sticky_margin,
    )
