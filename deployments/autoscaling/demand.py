"""From figures to the decision's terms: pools with what they hold, and demand in KV tokens."""

from collections.abc import Mapping, Sequence

from deployments.autoscaling.decide import Demand, Pool, fits
from deployments.autoscaling.facts import PoolFacts
from deployments.autoscaling.figures import Queue, ReplicaFigures
from deployments.autoscaling.shared import PoolNow


def pool_of(facts: PoolFacts, now: PoolNow) -> Pool:
    """A pool as it is: its bounds and target, and the KV tokens its replicas report or, before, are planned to hold."""
    return Pool(
        name=facts.name,
        cost=facts.cost,
        kv_tokens=measured(facts, now).kv_tokens,
        max_requests=facts.max_requests,
        min_replicas=now.min_replicas,
        max_replicas=now.max_replicas,
        target=now.target,
        startable=now.startable,
    )


def measured(facts: PoolFacts, now: PoolNow) -> PoolFacts:
    """Facts over the memory that replicas report (their mean: cards under one label can differ)."""
    if not now.replicas:
        return facts
    return facts.with_kv_tokens(sum(replica.kv_tokens for replica in now.replicas) / len(now.replicas))


def demands_of(
    facts: Sequence[PoolFacts], now: Mapping[str, PoolNow], queues: Sequence[Queue] | None
) -> tuple[Demand, ...]:
    """Everything that needs KV memory of one model: what replicas hold, what waits at handles and at the ingress.

    Args:
        queues: of the ingress; None if nothing is known of them.
    """
    sized = [measured(one, now[one.name]) for one in facts if one.name in now]
    demands = [waiting(sized, queue) for queue in queues or ()]
    for one in sized:
        demands += held(sized, now[one.name].replicas)
        if now[one.name].queued > 0:
            typical = one.typical_tokens
            count = now[one.name].queued
            demands.append(waiting(sized, Queue(requests=count, tokens=count * typical, longest=typical)))
    return tuple(demands)


def waiting(pools: Sequence[PoolFacts], queue: Queue) -> Demand:
    """Requests that hold nothing yet. They fit where the longest of them does."""
    mean = queue.tokens / queue.requests
    fitting = [pool for pool in pools if fits(pool.kv_tokens_of(queue.longest), pool.kv_tokens)]
    return Demand(requests=queue.requests, kv_tokens={pool.name: pool.kv_tokens_of(mean) for pool in fitting})


def held(pools: Sequence[PoolFacts], replicas: Sequence[ReplicaFigures]) -> list[Demand]:
    """What a pool's replicas hold, one demand for each set of pools that it would fit in.

    A replica's requests could be where its largest could: KV tokens are taken as the same in every pool.
    """
    sums: dict[tuple[str, ...], tuple[float, float]] = {}
    for replica in replicas:
        if replica.held_kv_tokens <= 0 and replica.requests <= 0:
            continue
        requests = max(1.0, replica.requests)
        least = max(replica.largest_kv_tokens, replica.held_kv_tokens / requests)
        fitting = tuple(pool.name for pool in pools if fits(least, pool.kv_tokens))
        before = sums.get(fitting, (0.0, 0.0))
        sums[fitting] = (before[0] + requests, before[1] + replica.held_kv_tokens)
    return [
        Demand(requests=requests, kv_tokens=dict.fromkeys(fitting, tokens / requests))
        for fitting, (requests, tokens) in sums.items()
    ]
