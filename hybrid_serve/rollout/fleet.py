"""The rollout's view of the replicas: what their heartbeats told. In memory, bounded, the clock is handed in."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from hybrid_serve.rollout.wire import FailedSwitch, ReplicaRun

PERIOD_S = 5.0
"""Seconds between two heartbeats outside a rollout (`negotiation.book.REPORT_PERIOD_S`)."""
SETTLE_S = 3 * PERIOD_S
"""After its start a planner has heard from every replica by then."""
SUSPECT_AFTER_S = 2 * PERIOD_S
LOST_AFTER_S = 6 * PERIOD_S
REMEMBER_GONE_S = 600.0
MAX_REPLICAS = 16384
MAX_GONE = 4096


@dataclass(frozen=True, kw_only=True)
class Seen:
    """One live replica.

    Attributes:
        heard_at: when its last heartbeat came, in the clock's seconds.
        answered: the generation that it was last told to run, and has not run since.
        failed, failed_at: the last switch that failed while this planner looked on, and when that was heard of.
        serving: it has an engine, and was heard of lately.
    """

    run: ReplicaRun
    heard_at: float
    answered: str | None = None
    failed: FailedSwitch | None = None
    failed_at: float = 0.0
    serving: bool = False

    def failure_of(self, digest: str, since: float) -> str:
        """Why a switch to this generation failed after `since`; empty if none did."""
        failed = self.failed
        return failed.reason if failed is not None and failed.digest == digest and self.failed_at > since else ""


@dataclass(frozen=True, kw_only=True)
class Gone:
    """One that was heard of, and is no more.

    Attributes:
        orderly: it said that it stops; otherwise it fell silent.
    """

    run: ReplicaRun
    at: float
    orderly: bool


@dataclass(frozen=True, kw_only=True)
class FleetView:
    """What is known of one app's replicas at one moment.

    Attributes:
        gone: those that went lately.
        started_at: when this planner began to listen, in seconds since the epoch, as every time here.
        settled: it has listened long enough to have heard from every replica.
        applied: how deployments through Ray Serve ended, by key: the error, empty if there was none.
    """

    replicas: Mapping[str, Seen]
    gone: Mapping[str, Gone] = field(default_factory=dict)
    started_at: float = 0.0
    settled: bool = True
    applied: Mapping[str, str] = field(default_factory=dict)

    def lost(self, replica_id: str, now: float) -> bool:
        """It went, or it is known from before the planner's start and was not heard of since for long enough."""
        if replica_id in self.replicas:
            return False
        return replica_id in self.gone or now - self.started_at > LOST_AFTER_S


class Fleet:
    """Replicas by id. A replica silent for `LOST_AFTER_S` is gone; what is gone is remembered for ten minutes."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._seen: dict[str, Seen] = {}
        self._gone: dict[str, Gone] = {}
        self.started_at = clock()

    def heard(self, replica_id: str, run: ReplicaRun) -> None:
        """A heartbeat. Dict order is by who was heard of longest ago."""
        before = self._seen.pop(replica_id, None)
        self._gone.pop(replica_id, None)
        now = self._clock()
        answered = before.answered if before is not None and before.answered != run.digest else None
        failed, failed_at = None, 0.0
        if run.failed is not None and before is not None:
            if before.failed == run.failed:
                failed, failed_at = before.failed, before.failed_at
            elif before.run.failed != run.failed or answered == run.failed.digest:
                failed, failed_at = run.failed, now
        self._seen[replica_id] = Seen(
            run=run,
            heard_at=now,
            answered=answered,
            failed=failed,
            failed_at=failed_at,
            serving=run.phase == "serving" and not run.dead,
        )
        if len(self._seen) > MAX_REPLICAS:
            self._drop(next(iter(self._seen)), orderly=False)

    def answer(self, replica_id: str, digest: str) -> None:
        """The replica is told to run this generation with the answer to its heartbeat: an older failure is over."""
        seen = self._seen[replica_id]
        if seen.answered != digest or seen.failed is not None:
            self._seen[replica_id] = replace(seen, answered=digest, failed=None)

    def seen(self, replica_id: str) -> Seen | None:
        return self._seen.get(replica_id)

    def forget(self, replica_id: str) -> None:
        """The replica said that it stops. Forgetting an unknown one is safe."""
        if replica_id in self._seen:
            self._drop(replica_id, orderly=True)

    def by_app(self) -> dict[str, dict[str, Seen]]:
        """Live replicas by app and id."""
        now = self._clock()
        self._sweep(now)
        found: dict[str, dict[str, Seen]] = {}
        for replica_id, seen in self._seen.items():
            if seen.serving and now - seen.heard_at > SUSPECT_AFTER_S:
                seen = replace(seen, serving=False)
            found.setdefault(seen.run.app, {})[replica_id] = seen
        return found

    def gone(self) -> Mapping[str, Gone]:
        """Those that went lately, of all apps."""
        return self._gone

    def __len__(self) -> int:
        return len(self._seen)

    def check_integrity(self) -> None:
        """Raises AssertionError if the fleet contradicts itself."""
        assert len(self._seen) <= MAX_REPLICAS, f"{len(self._seen)} replicas, limit {MAX_REPLICAS}"
        assert len(self._gone) <= MAX_GONE, f"{len(self._gone)} that went, limit {MAX_GONE}"
        assert not self._seen.keys() & self._gone.keys(), "a replica lives and is gone"
        times = [seen.heard_at for seen in self._seen.values()]
        assert times == sorted(times), "replicas are not in the order in which they were heard of"

    def _sweep(self, now: float) -> None:
        for replica_id, seen in list(self._seen.items()):
            if now - seen.heard_at <= LOST_AFTER_S:
                break
            self._drop(replica_id, orderly=False)
        for replica_id, gone in list(self._gone.items()):
            if now - gone.at <= REMEMBER_GONE_S:
                break
            del self._gone[replica_id]

    def _drop(self, replica_id: str, *, orderly: bool) -> None:
        self._gone[replica_id] = Gone(run=self._seen.pop(replica_id).run, at=self._clock(), orderly=orderly)
        while len(self._gone) > MAX_GONE:
            del self._gone[next(iter(self._gone))]
