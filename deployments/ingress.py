"""The ingress deployment: it builds a `Forwarder` over the pools of every model, and takes its limits."""

import logging
from dataclasses import dataclass
from typing import Any

from ray import serve
from ray.serve.handle import DeploymentHandle

from deployments.autoscaling.figures import ingress_stats
from deployments.forwarder import Forwarder
from deployments.limits import Limits
from deployments.local_grpc import keep_grpc_local
from deployments.metrics import IngressMetrics
from deployments.observation import keep_showing
from deployments.routing.boards import board_of
from deployments.routing.service import ModelService

logger = logging.getLogger("ray.serve")


@dataclass(frozen=True)
class Queued:
    """Requests of one model that wait in this ingress, and their estimated tokens, prompt and output."""

    requests: int
    tokens: int


@dataclass(frozen=True)
class WaitingHere:
    """One request of a model that waits in this ingress, see `deployments.autoscaling.figures.WaitingRequest`."""

    model: str
    tokens: int
    sequences: int


class Ingress:
    """The deployment around a `Forwarder`; wrap it with `serve.ingress()`."""

    async def __init__(self, services: dict[str, dict[str, DeploymentHandle]], check_model: bool = True) -> None:
        """`services`: model name -> pool name -> handle on that pool's deployment.

        `check_model=False` leaves the model name to vLLM: with LoRA adapters it knows more names than these.
        """
        keep_grpc_local()
        context = serve.get_replica_context()
        self._services: dict[str, ModelService] = {}
        for name, pools in services.items():
            board = board_of(context.app_name, name)
            board.ingress_id = context.replica_id.unique_id
            self._services[name] = ModelService(name, {pool: _calls(handle) for pool, handle in pools.items()}, board)
        metrics = IngressMetrics(app=context.app_name, replica=context.replica_id.unique_id)
        self._forwarder = Forwarder(self._services, check_model=check_model, on_rejected=metrics.rejected)
        self._showing = keep_showing(lambda: self._show_queue(metrics))

    async def __serve_build_asgi_app__(self) -> Forwarder:
        return self._forwarder

    async def _show_queue(self, metrics: IngressMetrics) -> None:
        metrics.show_queue({name: queue.requests for name, queue in self.queued().items()})

    def record_autoscaling_stats(self) -> dict[str, float]:
        """What waits here, for `deployments.autoscaling.policy`; Ray Serve asks every second."""
        return ingress_stats(
            WaitingHere(name, need.tokens, need.sequences)
            for name, service in self._services.items()
            for need in service.admission.waiting()
        )

    def queued(self) -> dict[str, Queued]:
        """Model name -> what waits here for room."""
        queues = {name: service.admission for name, service in self._services.items()}
        return {name: Queued(queue.queued_requests, queue.queued_tokens) for name, queue in queues.items()}

    def reconfigure(self, user_config: Any) -> None:
        """Takes new limits. Idempotent; never raises, which would kill the replica."""
        try:
            limits = Limits(**user_config)
        except TypeError as error:
            logger.error("ignored limits %r: %r", user_config, error)
            return
        self._forwarder.max_body = limits.max_body
        self._forwarder.request_timeout_s = limits.request_timeout_s
        self._forwarder.retries = limits.retries
        for service in self._services.values():
            service.board.sticky_margin = limits.sticky_margin
            service.admission.max_queued = limits.max_queued_requests
            service.admission.max_queue_s = limits.max_queue_s


def _calls(pool: DeploymentHandle) -> DeploymentHandle:
    """gRPC between replicas costs less per chunk than Ray's streaming object references."""
    return pool.options(
        method_name="handle",
        stream=True,
        _by_reference=False,
        request_serialization="pickle",
        response_serialization="pickle",
    )
