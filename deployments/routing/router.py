"""Ray Serve's request router for a pool: it feeds the board, and sends each request to the replica on its ticket."""

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from ray.serve._private.common import ReplicaID
from ray.serve._private.request_router.common import PendingRequest
from ray.serve._private.request_router.replica_wrapper import RunningReplica
from ray.serve._private.request_router.request_router import RequestRouter

from deployments.routing.board import Board
from deployments.routing.boards import board_of
from deployments.routing.facts import ReplicaFacts, ReplicaLoad
from deployments.routing.reservation import Known
from deployments.routing.ticket import ReplicaFull, ReplicaUnavailable, Ticket

logger = logging.getLogger("ray.serve")


class CapacityRouter(RequestRouter):
    """A request with a ticket goes to the replica that its ingress reserved room on, or fails at once with
    `ReplicaUnavailable` (`ReplicaFull` if that holds max_ongoing_requests), so that the ingress can choose again. One
    without (`handle.stats.remote()`) goes to the replica with the most free KV tokens.

    Checked with Ray 2.60, whose public hook (`choose_replicas`) can prefer a replica but can't refuse a request:
    hence the override of `_choose_replica_for_request`, which also saves a routing task per request.
    """

    def initialize_state(self, *, model: str) -> None:
        """`model`: name of the model whose replicas these are."""
        self._board: Board = board_of(self._deployment_id.app_name, model)
        self._facts: dict[str, ReplicaFacts | None] = {}
        self._later_facts: dict[str, tuple[Mapping[str, Any], ReplicaFacts]] = {}
        self._by_name: dict[str, RunningReplica] = {}
        self._out_of_reach: set[ReplicaID] = set()

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Called with all running replicas whenever one came, went or reported."""
        super().update_replicas(replicas)
        self._tell_board()

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        super().on_replica_actor_died(replica_id)
        self._tell_board()

    def on_replica_actor_unavailable(self, replica_id: ReplicaID) -> None:
        super().on_replica_actor_unavailable(replica_id)
        self._out_of_reach.add(replica_id)

    def on_new_queue_len_info(self, replica_id: ReplicaID, num_ongoing_requests: int) -> None:
        """Called with a replica's answer to a request that it was sent, accepted or not."""
        super().on_new_queue_len_info(replica_id, num_ongoing_requests)
        self._out_of_reach.discard(replica_id)

    def _tell_board(self) -> None:
        self._out_of_reach &= self._replicas.keys()
        self._by_name = {replica_id.unique_id: replica for replica_id, replica in self._replicas.items()}
        self._facts = {name: self._facts_of(name, replica) for name, replica in self._by_name.items()}
        self._later_facts = {name: told for name, told in self._later_facts.items() if name in self._by_name}
        known = {}
        for name, facts in self._facts.items():
            if facts is not None:
                replica = self._by_name[name]
                load = _load_of(name, replica)
                known[name] = Known(self._newest_facts(name, facts, load), load, replica.max_ongoing_requests)
        self._board.update(self._deployment_id.name, known)

    def _facts_of(self, name: str, replica: RunningReplica) -> ReplicaFacts | None:
        if name in self._facts:
            return self._facts[name]
        try:
            return ReplicaFacts.from_metadata(replica.replica_metadata)
        except ValueError as error:
            logger.error("replica %s gets no requests: %s", name, error)
            return None

    def _newest_facts(self, name: str, at_start: ReplicaFacts, load: ReplicaLoad) -> ReplicaFacts:
        """Ray Serve asks for a replica's metadata once; what changed since comes with its load."""
        if load.facts is None:
            return at_start
        told = self._later_facts.get(name)
        if told is None or told[0] != load.facts:
            try:
                told = self._later_facts[name] = (load.facts, ReplicaFacts.from_metadata(load.facts))
            except ValueError as error:
                logger.error("replica %s: %s", name, error)
                return at_start if told is None else told[1]
        return told[1]

    async def _choose_replica_for_request(
        self, pending_request: PendingRequest, *, is_retry: bool = False
    ) -> RunningReplica:
        ticket = _ticket_of(pending_request.args)
        if ticket is None:
            return await super()._choose_replica_for_request(pending_request, is_retry=is_retry)
        replica = self._by_name.get(ticket.replica_id)
        if replica is None:
            raise ReplicaUnavailable(f"replica {ticket.replica_id} of pool {self._deployment_id.name} is gone")
        if is_retry and replica.replica_id in self._out_of_reach:
            raise ReplicaUnavailable(f"replica {ticket.replica_id} of pool {self._deployment_id.name} is out of reach")
        if is_retry:
            raise ReplicaFull(
                f"replica {ticket.replica_id} of pool {self._deployment_id.name} has {replica.max_ongoing_requests} "
                "requests, its max_ongoing_requests"
            )
        return replica

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """For requests without a ticket: one replica a rank, those with the most free KV tokens first."""
        if pending_request is not None:
            pending_request.routing_context.should_backoff = True
        free = self._board.free_tokens()
        ranked = sorted(candidate_replicas, key=lambda replica: -free.get(replica.replica_id.unique_id, 0.0))
        return [[replica] for replica in ranked]


def _ticket_of(arguments: Iterable[Any]) -> Ticket | None:
    return next((argument for argument in arguments if isinstance(argument, Ticket)), None)


def _load_of(name: str, replica: RunningReplica) -> ReplicaLoad:
    try:
        return ReplicaLoad.from_stats(replica.routing_stats)
    except ValueError as error:
        logger.error("replica %s: %s", name, error)
        return ReplicaLoad()
