"""The decision: demand in KV tokens against what each pool's replicas hold. Pure: no Ray, no clock.

Demand is laid out over the pools like water over steps: first what the pools' least replicas hold, which is there
anyway, then the cheapest pool (per KV token) up to its most, then the next. A request counts for a pool only where
one replica can hold it, and those that fit in the fewest pools are laid out first. The result is a number of replicas
that depends on the demand alone, not on how many run: replicas that are still starting are therefore counted as
there, and one burst does not start the whole fleet.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor

UTILISATION = 0.8
"""Share of a replica's KV tokens that is planned for: a new replica takes a model load to arrive."""

MARGIN = 0.1
"""A replica is taken away only if the rest would then be used to UTILISATION - MARGIN at most."""

_EPSILON = 1e-9


@dataclass(frozen=True, kw_only=True)
class Pool:
    """One pool of one model.

    Attributes:
        cost: of one replica per hour, in any unit that all pools of the model share.
        kv_tokens: KV tokens that one replica holds.
        max_requests: requests that one replica runs at once.
        min_replicas, max_replicas: bounds of the target.
        target: replicas asked for now: those that run and those that are still starting.
        startable: the most that can be expected to run where starts got stuck (no free GPU in the cluster); None if
            nothing is known to be in the way. What is above it is laid out over other pools, and stays asked for.
    """

    name: str
    cost: float
    kv_tokens: float
    max_requests: float
    min_replicas: int
    max_replicas: int
    target: int
    startable: int | None = None

    @property
    def cost_per_token(self) -> float:
        return self.cost / self.kv_tokens


@dataclass(frozen=True, kw_only=True)
class Demand:
    """Requests of about one size, held by a replica or waiting for one.

    Attributes:
        requests: how many.
        kv_tokens: KV tokens that one of them takes, by pool; a pool that is left out can't hold one.
    """

    requests: float
    kv_tokens: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Target:
    """What a pool should have.

    Attributes:
        reason: one sentence for the log: why it is more or less than now; empty if it is not.
    """

    replicas: int
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Demand laid out over pools.

    Attributes:
        replicas: fractions of replicas that the demand fills, by pool; at most the pool's most.
        unplaced: requests that fit in no replica of the fleet, or that the fleet at its most has no room for.
    """

    replicas: Mapping[str, float]
    unplaced: float


def decide_targets(
    pools: Sequence[Pool],
    demands: Sequence[Demand],
    *,
    utilisation: float = UTILISATION,
    margin: float = MARGIN,
) -> dict[str, Target]:
    """The target of each pool of one model. Delays are the caller's: it asks for a change once it has held for them.

    Up as soon as demand is above `utilisation` of what is asked for, down only when it is below `utilisation - margin`
    of what would be left, so that constant demand settles after one step. Down goes the most expensive pool first: the
    others wait until its target is what it should be. What running requests hold is demand like any other, so the
    fleet as a whole never shrinks below it; on which replica a request runs does not keep that replica, since one that
    is stopped finishes what it has.

    Raises:
        ValueError: not 0 < utilisation - margin <= utilisation <= 1.
    """
    if not 0 < utilisation - margin <= utilisation <= 1:
        raise ValueError(f"utilisation {utilisation} and margin {margin}: need 0 < utilisation - margin <= 1")
    least, most = _bounds(pools, demands, utilisation), _bounds(pools, demands, utilisation - margin)
    targets: dict[str, Target] = {}
    waits_for = ""
    for pool in sorted(pools, key=lambda pool: (-pool.cost_per_token, pool.name)):
        wanted = min(max(pool.target, least[pool.name]), most[pool.name])
        if wanted < pool.target and waits_for:
            targets[pool.name] = Target(replicas=pool.target)
            continue
        if wanted < pool.target:
            waits_for = pool.name
        targets[pool.name] = Target(replicas=wanted, reason=_reason(pool, wanted, demands, utilisation))
    return targets


def lay_out(pools: Sequence[Pool], demands: Sequence[Demand], utilisation: float) -> Layout:
    """Demand over the pools at a target utilisation, in fractions of replicas.

    More demand never fills any pool less.
    """
    used = {pool.name: 0.0 for pool in pools}
    by_cost = sorted(pools, key=lambda pool: (pool.cost_per_token, pool.name))
    steps = [(pool, _within(pool, pool.min_replicas)) for pool in by_cost]
    steps += [(pool, _within(pool, pool.max_replicas)) for pool in by_cost]
    unplaced = 0.0
    for demand in sorted(demands, key=lambda demand: _fitting(pools, demand)):
        left = demand.requests
        for pool, limit in steps:
            share = share_of_replica(pool, demand, utilisation)
            if share is None or left <= 0:
                continue
            taken = min(left, max(0.0, limit - used[pool.name]) / share)
            used[pool.name] += taken * share
            left -= taken
        unplaced += max(0.0, left)
    return Layout(replicas=used, unplaced=unplaced)


def fits(tokens: float, kv_tokens: float) -> bool:
    """True if `kv_tokens` hold `tokens`; a request of all blocks fits, however its share of them was rounded."""
    return tokens <= kv_tokens * (1 + _EPSILON)


def share_of_replica(pool: Pool, demand: Demand, utilisation: float) -> float | None:
    """The share of a replica that one request takes; None if a replica can't hold it.

    Its KV tokens over the utilised part of the replica's, but at most a whole replica, and at least what follows from
    how many fit beside each other: of requests that take 0.6 of a replica each has one to itself.
    """
    tokens = demand.kv_tokens.get(pool.name)
    if tokens is None or not fits(tokens, pool.kv_tokens):
        return None
    beside_each_other = floor(pool.kv_tokens / tokens + _EPSILON) if tokens > 0 else ceil(pool.max_requests)
    of_tokens = min(1.0, tokens / (utilisation * pool.kv_tokens))
    of_requests = min(1.0, 1 / (utilisation * pool.max_requests))
    return max(of_tokens, of_requests, 1 / max(1, beside_each_other))


def _bounds(pools: Sequence[Pool], demands: Sequence[Demand], utilisation: float) -> dict[str, int]:
    """Whole replicas by pool. A pool whose starts got stuck goes on asking for what it would be given otherwise."""
    replicas = dict(lay_out(pools, demands, utilisation).replicas)
    if any(pool.startable is not None for pool in pools):
        free = lay_out([_unhindered(pool) for pool in pools], demands, utilisation).replicas
        replicas |= {pool.name: free[pool.name] for pool in pools if pool.startable is not None}
    return {
        pool.name: min(max(ceil(replicas[pool.name] - _EPSILON), pool.min_replicas), pool.max_replicas)
        for pool in pools
    }


def _unhindered(pool: Pool) -> Pool:
    return Pool(**{**pool.__dict__, "startable": None})


def _within(pool: Pool, replicas: int) -> int:
    return replicas if pool.startable is None else min(replicas, pool.startable)


def _fitting(pools: Sequence[Pool], demand: Demand) -> tuple[int, tuple[str, ...]]:
    names = tuple(sorted(pool.name for pool in pools if share_of_replica(pool, demand, 1.0) is not None))
    return len(names), names


def _reason(pool: Pool, wanted: int, demands: Sequence[Demand], utilisation: float) -> str:
    if wanted == pool.target:
        return ""
    fitting = [demand for demand in demands if share_of_replica(pool, demand, 1.0) is not None]
    requests = sum(demand.requests for demand in fitting)
    tokens = sum(demand.requests * demand.kv_tokens[pool.name] for demand in fitting)
    return (
        f"{pool.name}: {pool.target} -> {wanted} replicas (of {pool.min_replicas} to {pool.max_replicas}): "
        f"{requests:,.0f} requests with {tokens:,.0f} KV tokens in the fleet would fit here, a replica holds "
        f"{pool.kv_tokens:,.0f}, {utilisation:.0%} of it planned for, at {pool.cost_per_token * 1e6:.3g} per million"
    )
