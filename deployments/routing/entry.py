"""One replica's account on the board."""

from dataclasses import dataclass, field

from deployments.routing.facts import ReplicaFacts, ReplicaLoad, Shape
from deployments.routing.limit import most_sequences
from deployments.routing.need import RequestNeed


@dataclass
class Entry:
    """What one replica can hold and what is in use, in KV blocks and in sequences.

    Attributes:
        own_blocks, own_sequences: reserved by this ingress.
        own_passing: requests of this ingress on it that hold no KV.
        others_blocks, others_sequences: reserved by other ingresses, as the replica last reported.
        excess_blocks, excess_sequences: in use at its last report beyond all reservations that it knew of then.
        suspect_since: when it failed a request, on the board's clock; None if it has reported since.
        full_since: when Ray Serve refused it a request for having too many, on the board's clock; None if it has
            reported, or a request on it has ended, since.
        draining_since: when it refused a request for being about to run another engine, on the board's clock; None if
            it has reported since that it takes some.
        most_blocks: that it had at any time; an answer of an engine before this one may still be on its way.
    """

    name: str
    pool: str
    facts: ReplicaFacts
    load: ReplicaLoad = field(default_factory=ReplicaLoad)
    limit: int = 0
    own_blocks: int = 0
    own_sequences: int = 0
    own_passing: int = 0
    others_blocks: int = 0
    others_sequences: int = 0
    excess_blocks: int = 0
    excess_sequences: int = 0
    suspect_since: float | None = None
    full_since: float | None = None
    draining_since: float | None = None
    most_blocks: int = field(init=False)

    def __post_init__(self) -> None:
        self.most_blocks = self.facts.num_blocks

    def take(self, load: ReplicaLoad, limit: int, ingress_id: str) -> bool:
        """A report; answers whether it is a new one. One that is not changes nothing but `limit`."""
        self.limit = limit
        if load.sequence == self.load.sequence:
            return False
        self.load = load
        self.full_since = None
        others = [held for ingress, held in load.reserved.items() if ingress != ingress_id]
        self.others_blocks = sum(blocks for blocks, _ in others)
        self.others_sequences = sum(sequences for _, sequences in others)
        blocks, sequences = (
            (sum(column) for column in zip(*load.reserved.values(), strict=True)) if load.reserved else (0, 0)
        )
        self.excess_blocks = max(0, round(load.kv_usage * self.facts.num_blocks) - blocks)
        self.excess_sequences = max(0, load.running + load.waiting - sequences)
        return True

    def take_facts(self, facts: ReplicaFacts) -> None:
        """Those of another engine, which came before the next report. What is reserved is still due to its requests."""
        self.facts = facts
        self.most_blocks = max(self.most_blocks, facts.num_blocks)
        self.excess_blocks = self.excess_sequences = 0

    @property
    def used_blocks(self) -> int:
        return self.own_blocks + self.others_blocks + self.excess_blocks

    @property
    def free_blocks(self) -> int:
        """At least 0."""
        return max(0, self.facts.num_blocks - self.used_blocks)

    @property
    def fullness(self) -> float:
        """Share of the blocks in use; above 1 if ingresses together reserved too much."""
        return self.used_blocks / self.facts.num_blocks

    @property
    def most_sequences(self) -> int:
        return most_sequences(self.facts.max_num_seqs, self.limit)

    def sequences(self, need: RequestNeed) -> int:
        """Sequences of a request that run at once here; the engine queues the others itself."""
        return min(need.sequences, self.most_sequences)

    def blocks(self, need: RequestNeed, known: dict[Shape, int] | None = None) -> int | None:
        """Blocks that a request holds here; None if this replica could not hold one of its sequences when empty.

        Of a request with more sequences than fit at once, all blocks. `known` keeps what was computed for replicas of
        the same shape; it is for one request.
        """
        facts = self.facts
        if need.prompt_tokens >= facts.max_model_len:
            return None
        each = None if known is None else known.get(facts.shape)
        if each is None:
            each = facts.blocks(min(need.tokens, facts.max_model_len))
            if known is not None:
                known[facts.shape] = each
        if each > self.facts.num_blocks:
            return None
        return min(each * self.sequences(need), self.facts.num_blocks)

    def has_room(self, blocks: int, sequences: int) -> bool:
        used = self.own_sequences + self.others_sequences + self.excess_sequences
        return blocks <= self.free_blocks and used + sequences <= self.most_sequences

    def check_integrity(self) -> None:
        """Raises AssertionError if this ingress alone reserved more than the replica has, or had before it changed."""
        assert 0 <= self.own_blocks <= self.most_blocks, f"{self.name}: {self.own_blocks} of {self.most_blocks}"
        assert min(self.own_sequences, self.own_passing) >= 0, f"{self.name}: {self}"
        assert min(self.others_blocks, self.others_sequences, self.excess_blocks, self.excess_sequences) >= 0, f"{self}"
