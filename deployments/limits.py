"""What the ingress lets through, as it reaches a running ingress: `user_config` of its deployment."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Fields of `limits` and `routing` in the configuration (`deployments.config`) that change in place."""

    max_body: int
    request_timeout_s: float
    max_queued_requests: int
    max_queue_s: float
    retries: int
    sticky_margin: float
