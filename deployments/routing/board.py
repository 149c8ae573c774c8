"""The replicas of one model as one ingress sees them: what each can hold, what is in use, where a request goes."""

import time
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from deployments.routing.entry import Entry
from deployments.routing.facts import Shape
from deployments.routing.need import BYTES_PER_TOKEN, OUTPUT_TOKENS, Estimates, RequestNeed
from deployments.routing.prefix import PrefixIndex
from deployments.routing.reservation import Known, Reservation
from deployments.routing.shares import Shares

STICKY_MARGIN = 0.25
"""Default of how much fuller, as a share of its blocks, a replica may become for the sake of a prefix it has seen."""

SUSPECT_S = 1.0
"""A report must come at least so much later than a failure to clear it: an earlier one may be from before."""

SUSPECT_LONGEST_S = 30.0
"""A suspect is tried again after this time even without a report: if the controller is away, no replica's arrive."""

FULL_LONGEST_S = 5.0
"""A full or draining replica is tried again after this time even if nobody says that it takes requests."""

PRIOR_REQUESTS = 8
"""The start values of the estimates count as much as so many measured requests."""


class _Candidate(NamedTuple):
    """A replica that has room, and the blocks that the request would hold there."""

    entry: Entry
    blocks: int

    @property
    def fullness(self) -> float:
        """Of the replica, with the request."""
        return (self.entry.used_blocks + self.blocks) / self.entry.facts.num_blocks


class Board:
    """Places requests on the replicas of one model, over all its pools.

    A replica's blocks in use are what this ingress reserved, what others reserved as the replica last reported it, and
    what its engine holds beyond all reservations of that report (outputs longer than expected; requests that came
    another way). Own reservations count at once and are never above what the replica has.

    A request goes where it fits: to a replica that has seen its beginning, unless that would make it fuller than the
    least full by more than the margin; otherwise to the one that is furthest behind its share, shares being in
    proportion to how many such requests each could still hold. Not thread-safe: one event loop owns it.
    """

    def __init__(
        self,
        *,
        sticky_margin: float = STICKY_MARGIN,
        suspect_s: float = SUSPECT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.sticky_margin = sticky_margin
        self.suspect_s = suspect_s
        self.estimates = Estimates()
        self.ingress_id = ""
        self._clock = clock
        self._entries: dict[str, Entry] = {}
        self._reservations: dict[int, Reservation] = {}
        self._numbers = 0
        self._prefixes = PrefixIndex()
        self._shares = Shares()
        self._listeners: list[Callable[[int], None]] = []
        self._replica_listeners: list[Callable[[str, float | None], None]] = []

    def listen(self, on_room: Callable[[int], None]) -> None:
        """`on_room(tokens)` is called when there may be more room: `tokens` were released, or 0 for other reasons."""
        self._listeners.append(on_room)

    def listen_to_replicas(self, on_replica: Callable[[str, float | None], None]) -> None:
        """`on_replica(name, drain_s)` is called when a replica leaves, with the seconds that it gets to end what it
        runs, and with None when it comes (back)."""
        self._replica_listeners.append(on_replica)

    def update(self, pool: str, replicas: Mapping[str, Known]) -> None:
        """The running replicas of a pool, all of them: those not in `replicas` have gone (or drain) and get nothing."""
        now = self._clock()
        for gone in [name for name, entry in self._entries.items() if entry.pool == pool and name not in replicas]:
            drain_s = self._entries.pop(gone).facts.drain_s
            self._shares.forget(gone)
            self._tell_of_replica(gone, drain_s)
        for name, known in replicas.items():
            entry = self._entries.get(name)
            if entry is None:
                entry = self._entries[name] = Entry(name, pool, known.facts)
                mine = [held for held in self._reservations.values() if held.replica_id == name]
                entry.own_blocks = sum(held.blocks for held in mine)
                entry.own_sequences = sum(held.sequences for held in mine)
                entry.own_passing = sum(not held.sequences for held in mine)
                entry.most_blocks = max(entry.most_blocks, entry.own_blocks)
                self._tell_of_replica(name, None)
            if entry.facts != known.facts:
                entry.take_facts(known.facts)
                self._prefixes.forget(name)
            reported = entry.take(known.load, known.limit, self.ingress_id)
            if reported and entry.suspect_since is not None and now - entry.suspect_since >= self.suspect_s:
                entry.suspect_since = None
            if reported and entry.draining_since is not None and now - entry.draining_since >= self.suspect_s:
                entry.draining_since = None
        self._estimate()
        self._tell(0)

    def _estimate(self) -> None:
        byte_weight = output_weight = float(PRIOR_REQUESTS)
        bytes_sum, output_sum = BYTES_PER_TOKEN * byte_weight, OUTPUT_TOKENS * output_weight
        for load in (entry.load for entry in self._entries.values()):
            if load.bytes_per_token is not None:
                byte_weight += load.measured_requests
                bytes_sum += load.measured_requests * load.bytes_per_token
            if load.mean_output_tokens is not None:
                output_weight += load.measured_requests
                output_sum += load.measured_requests * load.mean_output_tokens
        self.estimates = Estimates(bytes_per_token=bytes_sum / byte_weight, output_tokens=output_sum / output_weight)

    def suspect(self, replica_id: str) -> None:
        """The replica failed a request: it gets nothing until it reports again. Safe if it is unknown."""
        entry = self._entries.get(replica_id)
        if entry is not None:
            entry.suspect_since = self._clock()

    def holders(self, need: RequestNeed) -> frozenset[str]:
        """Replicas that could hold the request if they were empty, whatever they are doing now."""
        if not need.sequences:
            return frozenset(self._entries)
        alike: dict[Shape, int] = {}
        return frozenset(name for name, entry in self._entries.items() if entry.blocks(need, alike) is not None)

    def never_fits(self, need: RequestNeed) -> bool:
        """True if there are replicas, and none could ever hold the request."""
        return bool(self._entries) and all(entry.blocks(need) is None for entry in self._entries.values())

    def reserve(self, need: RequestNeed, closed: Collection[str] = ()) -> Reservation | None:
        """Room for a request now, on a replica outside `closed`; None if there is none."""
        serving = [entry for entry in self._entries.values() if self._takes(entry)]
        if not need.sequences:
            return self._pass(serving)
        candidates: dict[str, _Candidate] = {}
        alike: dict[Shape, int] = {}  # replicas of one plan hold equally many blocks of a sequence
        for entry in serving:
            if entry.name not in closed:
                blocks = entry.blocks(need, alike)
                if blocks is not None and entry.has_room(blocks, entry.sequences(need)):
                    candidates[entry.name] = _Candidate(entry, blocks)
        if not candidates:
            return None
        kind = need.tokens.bit_length()
        # How many such requests each could still hold.
        weights = {name: each.entry.free_blocks / each.blocks for name, each in candidates.items()}
        chosen = candidates[self._near_its_prefix(need, candidates) or self._shares.turn(kind, weights)]
        self._shares.charge(kind, weights, chosen.entry.name)
        if need.prefix and chosen.entry.facts.reuses_prefixes:
            self._prefixes.record(need.prefix, chosen.entry.name)
        return self._hold(chosen.entry, chosen.blocks, chosen.entry.sequences(need), need.tokens * need.sequences)

    def _near_its_prefix(self, need: RequestNeed, candidates: Mapping[str, _Candidate]) -> str | None:
        if not need.prefix:
            return None
        least = min(candidate.fullness for candidate in candidates.values())
        near = [
            candidates[name]
            for name in self._prefixes.holders(need.prefix, candidates)
            if candidates[name].entry.facts.reuses_prefixes
        ]
        if not near:
            return None
        best = min(near, key=lambda candidate: candidate.fullness)
        return best.entry.name if best.fullness <= least + self.sticky_margin else None

    def _pass(self, serving: list[Entry]) -> Reservation | None:
        if not serving:
            return None
        return self._hold(min(serving, key=lambda entry: (entry.own_passing, entry.fullness)), 0, 0, 0)

    def _hold(self, entry: Entry, blocks: int, sequences: int, tokens: int) -> Reservation:
        self._numbers += 1
        reservation = Reservation(
            number=self._numbers,
            replica_id=entry.name,
            pool=entry.pool,
            blocks=blocks,
            sequences=sequences,
            tokens=tokens,
        )
        self._reservations[reservation.number] = reservation
        entry.own_blocks += blocks
        entry.own_sequences += sequences
        entry.own_passing += not sequences
        return reservation

    def release(self, reservation: Reservation) -> bool:
        """Gives the room back. Only the first release of a reservation does anything; answers whether this one did."""
        if not self._give_back(reservation, full_since=None):
            return False
        self._tell(reservation.tokens)
        return True

    def refused(self, reservation: Reservation) -> bool:
        """As `release`, of a request that its replica was too full for: until that reports, or a request of this
        ingress on it ends, it gets nothing."""
        if not self._give_back(reservation, full_since=self._clock()):
            return False
        self._tell(0)
        return True

    def draining(self, reservation: Reservation) -> bool:
        """As `release`, of a request that its replica refused since it is about to run another engine: until that
        reports otherwise, it gets nothing."""
        entry = self._entries.get(reservation.replica_id)
        if entry is not None:
            entry.draining_since = self._clock()
        if not self._give_back(reservation, full_since=None):
            return False
        self._tell(0)
        return True

    def _give_back(self, reservation: Reservation, full_since: float | None) -> bool:
        if self._reservations.pop(reservation.number, None) is None:
            return False
        entry = self._entries.get(reservation.replica_id)
        if entry is not None:
            entry.own_blocks -= reservation.blocks
            entry.own_sequences -= reservation.sequences
            entry.own_passing -= not reservation.sequences
            entry.full_since = full_since
        return True

    def _tell(self, tokens: int) -> None:
        for on_room in self._listeners:
            on_room(tokens)

    def _tell_of_replica(self, name: str, drain_s: float | None) -> None:
        for on_replica in self._replica_listeners:
            on_replica(name, drain_s)

    def _serves(self, entry: Entry) -> bool:
        since, draining = entry.suspect_since, entry.draining_since
        return (
            entry.load.healthy
            and not entry.load.draining
            and (since is None or self._clock() - since >= SUSPECT_LONGEST_S)
            and (draining is None or self._clock() - draining >= FULL_LONGEST_S)
        )

    def _takes(self, entry: Entry) -> bool:
        full = entry.full_since is not None and self._clock() - entry.full_since < FULL_LONGEST_S
        return self._serves(entry) and not full

    @property
    def can_serve(self) -> bool:
        """True if any replica can be given a request, if only once it has room."""
        return any(self._serves(entry) for entry in self._entries.values())

    @property
    def max_model_len(self) -> int | None:
        """The longest request that every replica takes; None without replicas."""
        return min((entry.facts.max_model_len for entry in self._entries.values()), default=None)

    @property
    def reserved(self) -> int:
        """Reservations that are held."""
        return len(self._reservations)

    def fullness(self) -> dict[str, float]:
        """Replica -> share of its blocks in use, as far as this ingress knows."""
        return {name: entry.fullness for name, entry in self._entries.items()}

    def free_tokens(self) -> dict[str, float]:
        """Replica -> free KV tokens; none for those that are given nothing now."""
        return {
            name: entry.facts.kv_tokens * max(0.0, 1 - entry.fullness)
            for name, entry in self._entries.items()
            if self._takes(entry)
        }

    def check_integrity(self) -> None:
        """Raises AssertionError, with numbers, if the accounts disagree with the reservations."""
        self._prefixes.check_integrity()
        self._shares.check_integrity()
        for name, entry in self._entries.items():
            mine = [held for held in self._reservations.values() if held.replica_id == name]
            told = (entry.own_blocks, entry.own_sequences, entry.own_passing)
            held = (
                sum(each.blocks for each in mine),
                sum(each.sequences for each in mine),
                sum(not each.sequences for each in mine),
            )
            assert told == held, f"{name} accounts for (blocks, sequences, without KV) {told}, reservations hold {held}"
            entry.check_integrity()
