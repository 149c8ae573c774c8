"""What replicas and the ingress tell the controller: names and numbers of their `record_autoscaling_stats()`."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

HEARTBEAT = "queue_reported"
_WAITING = "waiting"


class WaitingRequest(Protocol):
    """A request that the ingress has not yet given to a replica."""

    @property
    def model(self) -> str: ...

    @property
    def tokens(self) -> int:
        """Expected length of one sequence, prompt and output."""
        ...

    @property
    def sequences(self) -> int:
        """That it runs at once; 0 if it holds no KV, but needs a replica all the same."""
        ...


@dataclass(frozen=True, kw_only=True)
class ReplicaFigures:
    """One replica now.

    Attributes:
        kv_tokens: KV tokens that it holds at most, as the engine reported; above 0.
        held_kv_tokens: in use or reserved, whichever is more.
        largest_kv_tokens: of the largest request among them, 0 if that is not known.
        requests: that run or wait in the engine.
    """

    kv_tokens: float
    held_kv_tokens: float
    largest_kv_tokens: float
    requests: float

    def to_stats(self) -> dict[str, float]:
        """What `record_autoscaling_stats()` of a replica answers."""
        return {name: float(value) for name, value in self.__dict__.items()}

    @classmethod
    def from_stats(cls, stats: Mapping[str, float]) -> "ReplicaFigures | None":
        """None if something is missing: then nothing is known of the replica."""
        if not all(name in stats for name in cls.__dataclass_fields__) or stats["kv_tokens"] <= 0:
            return None
        return cls(**{name: stats[name] for name in cls.__dataclass_fields__})


def replica_figures(
    *,
    kv_tokens: int,
    num_blocks: int,
    kv_usage: float,
    reserved_blocks: float,
    largest_blocks: float,
    running: int,
    waiting: int,
) -> ReplicaFigures:
    """From an engine's live figures and the replica's reservations, both in blocks.

    Args:
        kv_usage: share of the blocks in use, 0 to 1. Requests that wait in the engine hold nothing yet; each is taken
            for as large as one that runs.
        reserved_blocks: what routers have set aside on this replica; 0 where none do.
    """
    used = kv_usage * num_blocks
    if running:
        used *= 1 + waiting / running
    tokens_per_block = kv_tokens / num_blocks
    return ReplicaFigures(
        kv_tokens=kv_tokens,
        held_kv_tokens=max(used, reserved_blocks) * tokens_per_block,
        largest_kv_tokens=largest_blocks * tokens_per_block,
        requests=running + waiting,
    )


@dataclass(frozen=True, kw_only=True)
class Queue:
    """Requests of one model that wait at the ingress, all within one octave of length.

    Attributes:
        requests: sequences, where a request has several.
        tokens: of all of them, prompt and output.
        longest: tokens of the longest.
    """

    requests: float
    tokens: float
    longest: float

    def __add__(self, other: "Queue") -> "Queue":
        return Queue(
            requests=self.requests + other.requests,
            tokens=self.tokens + other.tokens,
            longest=max(self.longest, other.longest),
        )


def ingress_stats(waiting: Iterable[WaitingRequest]) -> dict[str, float]:
    """What `record_autoscaling_stats()` of the ingress answers: per model and octave of length three sums.

    Octaves keep the number of names small and a long request apart from short ones, which may fit elsewhere.
    """
    queues: dict[tuple[str, int], Queue] = {}
    for request in waiting:
        tokens, sequences = max(1, request.tokens), max(1, request.sequences)
        one = Queue(requests=sequences, tokens=sequences * tokens, longest=tokens)
        key = (request.model, tokens.bit_length())
        queues[key] = queues[key] + one if key in queues else one
    # Never empty: Ray Serve drops an empty answer, and an ingress without a queue would look like a silent one.
    stats = {HEARTBEAT: 1.0}
    for (model, octave), queue in queues.items():
        for name, value in queue.__dict__.items():
            stats[f"{_WAITING}|{octave}|{name}|{model}"] = float(value)
    return stats


def queues_from_stats(stats: Mapping[str, float]) -> dict[tuple[str, int], Queue]:
    """Inverse of `ingress_stats`, by model and octave; names of others are left alone."""
    parts: dict[tuple[str, int], dict[str, float]] = defaultdict(dict)
    for name, value in stats.items():
        kind, _, rest = name.partition("|")
        octave, _, rest = rest.partition("|")
        field, _, model = rest.partition("|")
        if kind == _WAITING and octave.isdigit() and field in Queue.__dataclass_fields__:
            parts[(model, int(octave))][field] = value
    return {key: Queue(**found) for key, found in parts.items() if len(found) == len(Queue.__dataclass_fields__)}
