"""What a replica publishes for routers: `ReplicaFacts` when it is ready, `ReplicaLoad` again and again."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from hybrid_serve.plan.capacity import ceil_div
from hybrid_serve.plan.group_need import GroupNeed

Shape = tuple[int, tuple[tuple[int, int, int], ...], int]
"""(blocks that every sequence holds, ((block_size, kept tokens, groups), ...), max_model_len)."""


@dataclass(frozen=True, kw_only=True)
class ReplicaFacts:
    """What does not change while a replica runs one engine.

    Attributes:
        plan_id: of its KV plan; for people.
        num_blocks: KV blocks of the engine, as it reported them.
        kv_tokens: vLLM's "KV cache size" figure of it.
        max_model_len: longest request in tokens.
        max_num_seqs: sequences that run at once.
        reuses_prefixes: the engine caches prefixes, so where a prompt goes matters.
        drain_s: seconds that it gets to end what it runs when it is stopped.
        groups: needs of the plan's KV groups.
    """

    pool: str
    model_name: str
    plan_id: str | None
    num_blocks: int
    kv_tokens: int
    max_model_len: int
    max_num_seqs: int
    reuses_prefixes: bool
    drain_s: float
    groups: tuple[GroupNeed, ...]

    def to_metadata(self) -> dict[str, Any]:
        """Plain values, for Ray Serve's `record_replica_metadata`."""
        return {
            "pool": self.pool,
            "model_name": self.model_name,
            "plan_id": self.plan_id,
            "num_blocks": self.num_blocks,
            "kv_tokens": self.kv_tokens,
            "max_model_len": self.max_model_len,
            "max_num_seqs": self.max_num_seqs,
            "reuses_prefixes": self.reuses_prefixes,
            "drain_s": self.drain_s,
            "groups": [group.to_json() for group in self.groups],
        }

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any]) -> "ReplicaFacts":
        """Inverse of `to_metadata`.

        Raises:
            ValueError: a field is missing or unknown, the message names it; or the replica has no KV blocks.
        """
        try:
            groups = tuple(GroupNeed.from_json(group) for group in metadata["groups"])
            facts = cls(**{**metadata, "groups": groups})
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a replica's metadata: {error}; got {sorted(metadata)}") from error
        if facts.num_blocks < 1 or not groups:
            raise ValueError(f"a replica with {facts.num_blocks} KV blocks in {len(groups)} groups holds no request")
        return facts

    @cached_property
    def shape(self) -> Shape:
        """What decides the blocks of a sequence: groups are often alike, and so are replicas."""
        fixed = sum(group.fixed_blocks for group in self.groups)
        shapes = Counter(
            (group.block_size, self.max_model_len if group.kept_tokens is None else group.kept_tokens)
            for group in self.groups
            if group.kind != "mamba"
        )
        return fixed, tuple((size, kept, count) for (size, kept), count in shapes.items()), self.max_model_len

    def blocks(self, tokens: int) -> int:
        """KV blocks that one sequence of `tokens` tokens, at most max_model_len, holds here."""
        fixed, shapes, _ = self.shape
        return fixed + sum(count * ceil_div(min(tokens, kept), size) for size, kept, count in shapes)


@dataclass(frozen=True, kw_only=True)
class ReplicaLoad:
    """What a replica reported last. The defaults are those of a replica that has not reported yet.

    Attributes:
        sequence: grows with every report; 0 before the first.
        healthy: its engine runs, or is about to be replaced by another.
        draining: it takes no requests, since it is about to run another engine.
        kv_usage: share of the KV blocks in use, 0 to 1.
        running, waiting: requests in the engine.
        preemptions: requests that the engine had to put back for want of blocks, since start.
        reserved: ingress id -> (blocks, sequences) of its requests that are on this replica.
        bytes_per_token: bytes of a prompt's text per token, as measured over `measured_requests`.
        mean_output_tokens: output of a finished request, as measured over `measured_requests`.
        facts: `ReplicaFacts.to_metadata()` if they are not those of its start, which are all that Ray Serve knows; some
            kilobytes, so None otherwise.
    """

    sequence: int = 0
    healthy: bool = True
    draining: bool = False
    kv_usage: float = 0.0
    running: int = 0
    waiting: int = 0
    preemptions: int = 0
    reserved: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    bytes_per_token: float | None = None
    mean_output_tokens: float | None = None
    measured_requests: int = 0
    facts: Mapping[str, Any] | None = None

    def to_stats(self) -> dict[str, Any]:
        """Plain values, for Ray Serve's `record_routing_stats`."""
        stats = {**vars(self), "reserved": {ingress: list(held) for ingress, held in self.reserved.items()}}
        if self.facts is None:
            del stats["facts"]
        return stats

    @classmethod
    def from_stats(cls, stats: Mapping[str, Any]) -> "ReplicaLoad":
        """Inverse of `to_stats`; of an empty mapping the defaults.

        Raises:
            ValueError: a field is unknown; the message names it.
        """
        try:
            reserved = {ingress: (blocks, sequences) for ingress, (blocks, sequences) in stats["reserved"].items()}
            return cls(**{**stats, "reserved": reserved})
        except KeyError:
            return cls()
        except TypeError as error:
            raise ValueError(f"not a replica's routing stats: {error}") from error
