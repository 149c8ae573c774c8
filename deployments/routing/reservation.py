"""What a board is told of a replica, and what it gives for a request."""

from dataclasses import dataclass
from typing import NamedTuple

from deployments.routing.facts import ReplicaFacts, ReplicaLoad


class Known(NamedTuple):
    """One replica as its router knows it. `limit`: requests that Ray Serve lets it hold at once."""

    facts: ReplicaFacts
    load: ReplicaLoad
    limit: int


@dataclass(frozen=True, kw_only=True)
class Reservation:
    """Room on a replica, held until it is released.

    Attributes:
        blocks, sequences: held there; both 0 for a request that needs no KV.
        tokens: of the request, over all its sequences.
    """

    number: int
    replica_id: str
    pool: str
    blocks: int
    sequences: int
    tokens: int
