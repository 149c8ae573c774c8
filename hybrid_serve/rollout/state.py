"""What is kept of one app: its generations, its rollout, and who was ordered what. Values; `records.py` writes them."""

from dataclasses import dataclass, field
from typing import Any, Literal

from hybrid_serve.rollout.wire import Figures, GenerationOffer, PoolOffer, RolloutOptions

GenerationState = Literal["rolling out", "current", "good", "replaced", "rolled back"]
"""`good` was current and served; `replaced` was current and never seen to serve on every replica."""

Phase = Literal["canary", "baking", "rolling", "replacing", "applying", "rolling back", "reverting"]
FORWARD: tuple[Phase, ...] = ("canary", "baking", "rolling", "replacing", "applying")

Kind = Literal["rollout", "rollback"]
Result = Literal["done", "rolled back", "superseded", "app deleted"]
StepState = Literal["ordered", "serving", "failed"]


@dataclass(frozen=True, kw_only=True)
class PoolRecord:
    """A `PoolOffer` without the configuration that its replicas are bound with."""

    model: str
    engine_digest: str
    placement_digest: str
    plan_id: str | None
    kv_tokens: int | None
    concurrency: float | None
    num_speculative_tokens: int

    @classmethod
    def of(cls, offer: PoolOffer) -> "PoolRecord":
        return cls(**{name: value for name, value in vars(offer).items() if name != "config"})


@dataclass(frozen=True, kw_only=True)
class Generation:
    """One numbered configuration.

    Attributes:
        created_at, built_at, current_at: seconds since the epoch; `current_at` is when it last became current, or None.
        proven: every live replica was seen to serve it at once.
    """

    number: int
    digest: str
    state: GenerationState
    created_at: float
    actor: str
    built_at: float
    pools: dict[str, PoolRecord]
    current_at: float | None = None
    proven: bool = False

    @classmethod
    def of(cls, offer: GenerationOffer, number: int, actor: str, now: float) -> "Generation":
        return cls(
            number=number,
            digest=offer.digest,
            state="rolling out",
            created_at=now,
            actor=actor,
            built_at=offer.built_at,
            pools={name: PoolRecord.of(pool) for name, pool in offer.pools.items()},
        )


@dataclass(frozen=True, kw_only=True)
class Step:
    """One replica and the generation that it was ordered to, or came up with.

    Attributes:
        at: when it was ordered, in seconds since the epoch.
        restart: its engine restarts for it.
        down: it had no serving engine when it was ordered: its absence is not the order's doing.
        reason: why it failed.
    """

    pool: str
    digest: str
    at: float
    restart: bool
    state: StepState = "ordered"
    canary: bool = False
    down: bool = False
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class ApplyRun:
    """One deployment of the app through Ray Serve, begun or ended.

    Attributes:
        key: of this attempt: equal for the same work, so that it is started once.
        not_before: a retry waits until then.
        failures: attempts that failed before this one.
    """

    key: str
    digest: str
    restart: dict[str, str]
    not_before: float
    failures: int = 0
    done: bool = False


@dataclass(frozen=True, kw_only=True)
class Rollout:
    """One way from a generation to another.

    Attributes:
        origin, to: numbers of generations.
        wave: waves that were ordered so far.
        baseline: every replica's totals when the bake began (when the first wave was ordered, without canaries).
        replaced: pools that Ray Serve was told to replace.
        progress, progress_at: replicas of the pool being replaced that serve, and when that last changed.
        applies: deployments through Ray Serve that were begun.
        bind_at: when `to` first was, or may have been, what Ray Serve is bound to; None: never.
        gates: verdicts as they were when it was decided on them, as JSON values.
    """

    name: str
    origin: int
    to: int
    kind: Kind
    phase: Phase
    options: RolloutOptions
    actor: str
    reason: str
    since: float
    phase_since: float
    paused: bool = False
    wave: int = 0
    baseline: dict[str, Figures] | None = None
    replaced: tuple[str, ...] = ()
    progress: int = 0
    progress_at: float = 0.0
    apply: ApplyRun | None = None
    applies: int = 0
    bind_at: float | None = None
    failure: str = ""
    gates: tuple[dict[str, Any], ...] = ()
    result: Result | None = None
    ended_at: float | None = None

    @property
    def forward(self) -> bool:
        return self.phase in FORWARD

    @property
    def apply_is_over(self) -> bool:
        """Nothing is being deployed for it."""
        return self.apply is None or self.apply.done


@dataclass(frozen=True, kw_only=True)
class App:
    """All that is kept of one app.

    Attributes:
        current: the generation that every replica is to run.
        bound: the one that Ray Serve binds new replicas with; `bound_at` is when that became so.
        by_serve: `current` came with a deployment through Ray Serve, not with a rollout.
        rebind: a deployment of `current` that is to run since a rollout's own may have come after that of Ray Serve.
        deployed: Ray Serve has the app. One that was deleted is kept for its history and its generations.
        orders: by replica id; outside a rollout those of replicas that are brought to `current`.
    """

    name: str
    generations: dict[int, Generation]
    current: int
    bound: int
    bound_at: float
    by_serve: bool = True
    orders: dict[str, Step] = field(default_factory=dict)
    rollout: Rollout | None = None
    last: Rollout | None = None
    rollouts: int = 0
    rebind: ApplyRun | None = None
    deployed: bool = True

    def by_digest(self, digest: str) -> Generation | None:
        return next((each for each in self.generations.values() if each.digest == digest), None)

    @property
    def now_current(self) -> Generation:
        return self.generations[self.current]


Event = dict[str, Any]
"""at (ISO, UTC), app, rollout, generation, actor, event, reason; replica and pool where it is about one."""
