"""What crosses the wire in a rollout: a generation on offer, what a replica tells, what it is told."""

from dataclasses import dataclass, field
from typing import Any, Literal

from hybrid_serve.facts.device import DeviceFacts

ReplicaPhase = Literal["starting", "serving", "draining", "switching"]
"""`starting`: its first engine; `switching`: the old engine has ended and the next one is not there yet."""


@dataclass(frozen=True, kw_only=True)
class PoolOffer:
    """One pool of a generation.

    Attributes:
        model: the name clients use.
        config: what its replicas are bound with (`deployments.config.ReplicaConfig`); opaque here.
        engine_digest: over all that an engine of it depends on; the same one in two generations needs no restart.
        placement_digest: over all that only a new replica can have (resources, labels, image).
        plan_id: of the planned KV plan; None if the device is not known where the offer was made.
        kv_tokens, concurrency: of that plan; None without one.
        num_speculative_tokens: K; 0 without a drafter.
    """

    model: str
    config: Any
    engine_digest: str
    placement_digest: str
    plan_id: str | None
    kv_tokens: int | None
    concurrency: float | None
    num_speculative_tokens: int


@dataclass(frozen=True, kw_only=True)
class GenerationOffer:
    """A configuration of one app, planned for every pool.

    Attributes:
        app: Ray Serve's name of the application.
        digest: 16 hex digits over the configuration and the fingerprints of every checkpoint: what a generation is.
        config: the configuration as plain JSON values, hub ids at the commits that were read.
        pools: by name.
        built_at: seconds since the epoch.
    """

    app: str
    digest: str
    config: dict[str, Any]
    pools: dict[str, PoolOffer]
    built_at: float


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Running totals of one engine since its start, and of the requests that it served.

    Attributes:
        requests: answered to the end.
        errors: answered 500 or above, or ended by an error event; a client that went away is none.
        ttft_count, ttft_sum_s: first tokens, and the seconds from a request's arrival in the engine to each.
        tpot_count, tpot_sum_s: requests with two or more output tokens, and the mean seconds per token after the first.
        drafts: draft forwards; `accepted_per_position[i]` of them had at least i + 1 tokens accepted.
    """

    requests: int = 0
    errors: int = 0
    ttft_count: int = 0
    ttft_sum_s: float = 0.0
    tpot_count: int = 0
    tpot_sum_s: float = 0.0
    drafts: int = 0
    accepted_per_position: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class FailedSwitch:
    """A generation that a replica could not start; it runs the one before."""

    digest: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class ReplicaRun:
    """What a heartbeat tells of one replica.

    Attributes:
        digest: of the generation that it serves, or (`switching`, `starting`) is about to.
        figures: of its engine; None while it has none.
        before: (digest, figures) of the engine that it ran before, as they were when that drained; None for its first.
        differences: between plan and engine, as sentences; empty if predicted = actual.
        dead: why the engine is dead; empty if it is not.
        failed: the last switch that failed; kept until the next order.
        device: as it was measured at the start.
    """

    app: str
    model: str
    pool: str
    digest: str
    phase: ReplicaPhase
    figures: Figures | None = None
    before: tuple[str, Figures] | None = None
    differences: tuple[str, ...] = ()
    dead: str = ""
    failed: FailedSwitch | None = None
    device: DeviceFacts | None = None


@dataclass(frozen=True, kw_only=True)
class Order:
    """The answer to a heartbeat.

    Attributes:
        known: the planner has the replica's report; if not, it wants it in full.
        run: digest of the generation that the replica is to run; None: as it is. Repeated until it does, idempotent.
        drain_s: seconds that running requests get before the engine is ended for `run`.
        again_s: seconds to the next heartbeat.
    """

    known: bool
    run: str | None = None
    drain_s: float = 60.0
    again_s: float = 5.0


@dataclass(frozen=True, kw_only=True)
class Gates:
    """When a generation is not healthy, compared with the one before.

    Attributes:
        error_rate: errors / (requests + errors) may be so much above the old generation's.
        ttft_ratio, tpot_ratio: means of the new over the old may be at most this.
        acceptance_ratio: mean tokens accepted per draft, over the positions that both K have, new over old, at least.
        min_requests: of the canaries of a pool, before its figures are judged.
    """

    error_rate: float = 0.01
    ttft_ratio: float = 2.0
    tpot_ratio: float = 1.5
    acceptance_ratio: float = 0.9
    min_requests: int = 20


@dataclass(frozen=True, kw_only=True)
class RolloutOptions:
    """How a generation goes out.

    Attributes:
        canary: replicas of each pool, `2` or `10%` (rounded up, at least one); `0`: no canary.
        bake_s: seconds that canaries serve before the rest follows.
        max_unavailable: replicas of the app that are without an engine at once, `1` or `20%` (at least one).
        drain_s: seconds that running requests get.
        start_s: seconds that a replica may take from its order to serving.
        allow_outage: go on even if a model is without a replica for a while.
    """

    canary: str = "1"
    bake_s: float = 300.0
    max_unavailable: str = "1"
    drain_s: float = 60.0
    start_s: float = 1800.0
    allow_outage: bool = False
    gates: Gates = field(default_factory=Gates)
