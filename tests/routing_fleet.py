"""Boards over made-up replicas, for tests of routing: real arithmetic, no Ray."""

from dataclasses import replace
from typing import Any

from deployments.routing.board import Board
from deployments.routing.facts import ReplicaFacts, ReplicaLoad
from deployments.routing.need import RequestNeed
from deployments.routing.reservation import Known
from hybrid_serve.plan.group_need import GroupNeed

HYBRID = (
    GroupNeed(kind="mamba", block_size=8192, window=None, fixed_blocks=8, kept_tokens=None),
    GroupNeed(kind="full", block_size=64, window=None, fixed_blocks=0, kept_tokens=None),
    GroupNeed(kind="sliding", block_size=32, window=128, fixed_blocks=1, kept_tokens=639),
)


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def facts(num_blocks: int, **other: Any) -> ReplicaFacts:
    """Of a replica whose short requests hold 10 blocks and more."""
    values: dict[str, Any] = {
        "pool": "pool",
        "model_name": "demo",
        "plan_id": "0" * 12,
        "num_blocks": num_blocks,
        "kv_tokens": num_blocks * 20,
        "max_model_len": 8192,
        "max_num_seqs": 10_000,
        "reuses_prefixes": True,
        "drain_s": 60.0,
        "groups": HYBRID,
    }
    return ReplicaFacts(**{**values, **other})


class Fleet:
    """Replicas in one pool and the board that knows them."""

    def __init__(self, ingress_id: str = "here", **board: Any) -> None:
        self.clock = Clock()
        self.board = Board(clock=self.clock, **board)
        self.board.ingress_id = ingress_id
        self.known: dict[str, Known] = {}

    def with_replicas(self, **replicas: ReplicaFacts) -> "Fleet":
        self.known |= {name: Known(each, ReplicaLoad(), 10_000) for name, each in replicas.items()}
        self.board.update("pool", self.known)
        return self

    def with_pool(self, pool: str, replicas: dict[str, ReplicaFacts]) -> "Fleet":
        """Replicas of another pool; their reports can't be made through this class."""
        self.board.update(pool, {name: Known(each, ReplicaLoad(), 10_000) for name, each in replicas.items()})
        return self

    def report(self, name: str, **load: Any) -> None:
        """A replica's next report."""
        known = self.known[name]
        values = {"reserved": {}, **load}
        self.known[name] = known._replace(load=replace(known.load, sequence=known.load.sequence + 1, **values))
        self.board.update("pool", self.known)

    def leave(self, name: str) -> Known:
        known = self.known.pop(name)
        self.board.update("pool", self.known)
        return known


def request(tokens: int, *, sequences: int = 1, prefix: tuple[int, ...] = (), output: int = 0) -> RequestNeed:
    """Of `tokens` tokens, `output` of them to be generated."""
    return RequestNeed(prompt_tokens=tokens - output, output_tokens=output, sequences=sequences, prefix=prefix)
