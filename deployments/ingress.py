"""The ingress deployment: a `Forwarder` over the pools of every model, which takes limits and pools in place."""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ray import serve
from ray.serve.handle import DeploymentHandle

from deployments.autoscaling.figures import ingress_stats
from deployments.binding import BoundGeneration
from deployments.desired import Desired
from deployments.forwarder import Forwarder
from deployments.generation import config_of
from deployments.limits import Limits, limits_of
from deployments.local_grpc import keep_grpc_local
from deployments.metrics import IngressMetrics
from deployments.observation import keep_showing
from deployments.registration import Registration
from deployments.routing.boards import board_of
from deployments.routing.service import ModelService
from hybrid_serve.rollout.wire import GenerationOffer

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

    async def __init__(  # type: ignore[misc]  # Ray Serve awaits it
        self,
        services: dict[str, dict[str, DeploymentHandle]],
        check_model: bool = True,
        offer: GenerationOffer | None = None,
        by_rollout: bool = False,
        origin: str = "",
    ) -> None:
        """`services`: model name -> pool name -> handle on that pool's deployment.

        `check_model=False` leaves the model name to vLLM: with LoRA adapters it knows more names than these. `offer` is
        the generation that this is a part of, which the planner is told unless it had it deployed (`by_rollout`).
        `origin` is only kept here, for the next generation to be bound with it too (`deployments.binding`).
        """
        keep_grpc_local()
        context = serve.get_replica_context()
        self._app, self._id = context.app_name, context.replica_id.unique_id
        self._services = {
            model: self._service(model, {pool: _calls(handle) for pool, handle in pools.items()})
            for model, pools in services.items()
        }
        self._limits = None if offer is None else limits_of(config_of(offer))
        metrics = IngressMetrics(app=self._app, replica=self._id)
        self._forwarder = Forwarder(self._services, check_model=check_model, on_rejected=metrics.rejected)
        self._show_limits()
        self._showing = keep_showing(lambda: self._show_queue(metrics))
        self._desired = Desired(self._app)
        self._registration = None
        if offer is not None:
            self._registration = Registration(self._app, BoundGeneration(offer, by_rollout))

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

    async def reconfigure(self, user_config: Any) -> None:
        """Takes new limits, pools and wishes. Idempotent; never raises, which would kill the replica.

        `user_config`: `limits` (the fields of `Limits`), `services` (model name -> names of its pools), `check_model`,
        `desired` (`deployments.desired`). What is left out stays as it is, except for `desired`.
        """
        if not isinstance(user_config, dict):
            logger.error("ignored user_config %r: not a mapping", user_config)
            return
        takers = {"limits": self._take_limits, "services": self._take_services, "check_model": self._take_check}
        for name, take in takers.items():
            if name in user_config:
                self._try(name, take, user_config[name])
        self._try("desired", self._desired.set, user_config.get("desired"))

    def _try(self, name: str, take: Any, value: Any) -> None:
        try:
            take(value)
        except Exception as error:
            logger.error("ignored %s %r: %r", name, value, error)

    def _take_limits(self, values: Mapping[str, Any]) -> None:
        self._limits = Limits(**values)
        self._show_limits()

    def _take_services(self, services: Mapping[str, Iterable[str]]) -> None:
        """Pools that are gone stay known to their model: their replicas may still be on the board, and end in peace."""
        wanted = {model: list(pools) for model, pools in services.items()}
        if not wanted:
            raise ValueError("there must be a model to serve")
        for model, pools in wanted.items():
            service = self._services.get(model)
            known = () if service is None else service.pools
            added = {pool: _calls(DeploymentHandle(pool, app_name=self._app)) for pool in pools if pool not in known}
            if service is None:
                self._services[model] = self._service(model, added)
            else:
                service.add_pools(added)
        for model in [name for name in self._services if name not in wanted]:
            del self._services[model]
        self._forwarder.serve(self._services)
        self._show_limits()

    def _take_check(self, check_model: Any) -> None:
        self._forwarder.check_model = bool(check_model)

    def _service(self, model: str, pools: dict[str, Any]) -> ModelService:
        board = board_of(self._app, model)
        board.ingress_id = self._id
        return ModelService(model, pools, board)

    def _show_limits(self) -> None:
        limits = self._limits
        if limits is None:
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
