"""The newest figures of every app, kept in the process of Ray Serve's controller.

Policies are pickled by value and made anew whenever a deployment is configured; this module is imported by
reference, so that the policies of all deployments of an app see the same figures. A controller that was restarted
starts with none.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from deployments.autoscaling.figures import Queue, ReplicaFigures, queues_from_stats

FRESH_S = 15.0
"""Seconds after which a replica that reported nothing new is taken for silent."""


@dataclass(frozen=True, kw_only=True)
class Series:
    """The newest point of what one replica told the controller: its time there, and the values of that time."""

    stamp: float
    stats: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class PoolNow:
    """A pool as Ray Serve sees it, and what its replicas said.

    Attributes:
        target, running: replicas asked for, and of these that run.
        queued: requests that wait at handles for a replica of this pool.
        replicas: figures of those that reported lately.
        silent: running replicas of which nothing is known, or nothing new.
        startable: the most that can be expected to run; None if nothing is known to be in the way.
        seen_at: when the controller looked, in the clock's seconds.
    """

    min_replicas: int
    max_replicas: int
    target: int
    running: int
    queued: float
    replicas: tuple[ReplicaFigures, ...]
    silent: int
    startable: int | None
    seen_at: float


@dataclass
class _Heard:
    """When something new was last heard from a replica; by this machine's clock, since others may differ."""

    stamp: float
    at: float


@dataclass
class _Starting:
    running: int
    since: float


@dataclass
class _Wish:
    """For more replicas of a pool: since when there is one, and when it was last there."""

    since: float
    at: float


@dataclass
class AppFigures:
    """One app. Bounded: a few values per deployment that the app ever had, and per replica that runs."""

    pools: dict[str, PoolNow] = field(default_factory=dict)
    queues: dict[tuple[str, int], Queue] = field(default_factory=dict)
    queue_seen_at: float = float("-inf")
    _heard: dict[str, dict[str, _Heard]] = field(default_factory=dict)
    _starting: dict[str, _Starting] = field(default_factory=dict)
    _wishes: dict[str, _Wish] = field(default_factory=dict)

    def record_pool(
        self,
        name: str,
        *,
        min_replicas: int,
        max_replicas: int,
        target: int,
        running: list[str],
        queued: float,
        reported: Mapping[str, Series],
        start_patience_s: float,
        now: float,
    ) -> None:
        """What the controller sees of a pool. `running` are ids of replicas, `reported` is what they told."""
        fresh = self._fresh(name, running, reported, now)
        figures = [found for one in fresh.values() if (found := ReplicaFigures.from_stats(one.stats)) is not None]
        self.pools[name] = PoolNow(
            min_replicas=min_replicas,
            max_replicas=max_replicas,
            target=target,
            running=len(running),
            queued=queued,
            replicas=tuple(figures),
            silent=len(running) - len(figures),
            startable=self._startable(name, target, len(running), start_patience_s, now),
            seen_at=now,
        )

    def record_ingress(self, name: str, *, running: list[str], reported: Mapping[str, Series], now: float) -> None:
        """What waits at the ingress. Counts only if every ingress replica was heard from lately."""
        fresh = self._fresh(name, running, reported, now)
        if not running or len(fresh) < len(running):
            return
        queues: dict[tuple[str, int], Queue] = {}
        for one in fresh.values():
            for key, queue in queues_from_stats(one.stats).items():
                queues[key] = queues[key] + queue if key in queues else queue
        self.queues, self.queue_seen_at = queues, now

    def queues_of(self, model: str, now: float) -> list[Queue] | None:
        """Queues by length; None if nothing is known of them: the ingress is gone, or has not reported yet."""
        if now - self.queue_seen_at > FRESH_S:
            return None
        return [queue for (name, _), queue in sorted(self.queues.items()) if name == model]

    def pool(self, name: str, now: float) -> PoolNow | None:
        """None if the controller has not looked at it lately."""
        found = self.pools.get(name)
        return None if found is None or now - found.seen_at > FRESH_S else found

    def must_wait(self, name: str, *, wished: bool, delay_s: float, now: float) -> bool:
        """Whether a wish for more replicas of a pool is younger than `delay_s`. To be told of its end, too.

        The next wish waits anew once one was granted, as Ray Serve does it. One that was not heard of for FRESH_S has
        ended: the app may have been deleted and deployed again.
        """
        last = self._wishes.pop(name, None)
        since = last.since if last is not None and now - last.at <= FRESH_S else now
        if not wished or now - since >= delay_s:
            return False
        self._wishes[name] = _Wish(since, now)
        return True

    def _fresh(self, name: str, running: list[str], reported: Mapping[str, Series], now: float) -> dict[str, Series]:
        before = self._heard.get(name, {})
        heard: dict[str, _Heard] = {}
        for replica in running:
            series = reported.get(replica)
            if series is None:
                continue
            known = before.get(replica)
            heard[replica] = known if known is not None and known.stamp == series.stamp else _Heard(series.stamp, now)
        self._heard[name] = heard
        return {replica: reported[replica] for replica, last in heard.items() if now - last.at <= FRESH_S}

    def _startable(self, name: str, target: int, running: int, patience_s: float, now: float) -> int | None:
        """Starts are stuck if replicas are missing and none has come for `patience_s`."""
        if running >= target:
            self._starting.pop(name, None)
            return None
        last = self._starting.get(name)
        if last is None or running > last.running:
            last = self._starting[name] = _Starting(running, now)
        last.running = running
        return running if now - last.since >= patience_s else None


_apps: dict[str, AppFigures] = {}


def figures_of(app: str) -> AppFigures:
    """The figures of one app, in this process; empty ones at first."""
    return _apps.setdefault(app, AppFigures())


def newest(raw: Mapping[str, Mapping[Any, Any]], id_of: Callable[[Any], str]) -> dict[str, Series]:
    """The newest point of each replica from Ray Serve's `AutoscalingContext.raw_metrics` (name -> replica -> series).

    Series keep points of a whole window, and a name that is no longer told keeps its old ones: only values of a
    replica's newest time count.
    """
    points: dict[str, dict[str, tuple[float, float]]] = {}
    for name, by_replica in raw.items():
        for replica, series in by_replica.items():
            if series:
                last = series[-1]
                points.setdefault(id_of(replica), {})[name] = (last.timestamp, last.value)
    found = {}
    for replica_id, values in points.items():
        stamp = max(at for at, _ in values.values())
        stats = {name: value for name, (at, value) in values.items() if at == stamp}
        found[replica_id] = Series(stamp=stamp, stats=stats)
    return found
