"""What travels with a request to the replica that was chosen for it."""

from dataclasses import dataclass


class ReplicaUnavailable(Exception):
    """The chosen replica can't serve the request and has not begun to: another one may."""


class ReplicaFull(ReplicaUnavailable):
    """The chosen replica holds as many requests as Ray Serve lets it; nothing is wrong with it."""


class ReplicaDraining(ReplicaUnavailable):
    """The chosen replica takes no requests until it runs another engine; nothing is wrong with it."""


@dataclass(frozen=True)
class Ticket:
    """A request's place on one replica.

    Attributes:
        replica_id: Ray Serve's unique id of the chosen replica.
        ingress_id: of the ingress replica that holds the reservation.
        blocks: KV blocks reserved there; 0 for a request that needs none.
        sequences: sequences reserved there; 0 for a request that needs none.
        prompt_bytes: UTF-8 bytes of the prompt's text, 0 if they say nothing about tokens.
    """

    replica_id: str
    ingress_id: str
    blocks: int
    sequences: int
    prompt_bytes: int
