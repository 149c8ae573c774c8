"""How many requests a replica is expected to run and is given at most."""

from dataclasses import dataclass

from deployments.config import PoolConfig
from deployments.routing.limit import default_limit
from hybrid_serve.plan.capacity import request_blocks
from hybrid_serve.plan.inputs import PlanInputs
from hybrid_serve.plan.kv_plan import KVPlan
from hybrid_serve.plan.search import contexts_of

TARGET_SHARE = 0.8
"""Autoscaling aims below what a replica can hold: a new one takes a model load to arrive."""


@dataclass(frozen=True, kw_only=True)
class PoolSizing:
    """What Ray Serve is told about one replica.

    Attributes:
        concurrency: requests of the configured workload that run at once: what the KV plan holds, at most
            max_num_seqs, at least 1.
        target_ongoing_requests: autoscaling keeps the mean per replica near it: 80 % of `concurrency`.
        max_ongoing_requests: the most that Ray Serve gives a replica. It follows max_num_seqs and not the plan
            (`deployments.routing.limit`): what a plan holds of other requests than the workload's, the board counts.
    """

    concurrency: int
    target_ongoing_requests: float
    max_ongoing_requests: int


def planned_concurrency(plan: KVPlan, inputs: PlanInputs) -> int:
    """Requests of the workload's mean size that the plan holds at once; at most max_num_seqs, at least 1."""
    mean_blocks = sum(weight * request_blocks(plan, inputs, tokens) for tokens, weight in contexts_of(inputs))
    return max(1, min(inputs.settings.max_num_seqs, int(plan.num_blocks / mean_blocks)))


def size_pool(plan: KVPlan, inputs: PlanInputs, pool: PoolConfig) -> PoolSizing:
    """Numbers from the plan, except those that the configuration sets."""
    return _sizing(planned_concurrency(plan, inputs), inputs, pool)


def guessed_sizing(inputs: PlanInputs, pool: PoolConfig) -> PoolSizing:
    """For a pool whose device is a guess that no plan fits on: as many requests as the engine steps through at once."""
    return _sizing(inputs.settings.max_num_seqs, inputs, pool)


def _sizing(concurrency: int, inputs: PlanInputs, pool: PoolConfig) -> PoolSizing:
    most = pool.max_ongoing_requests or default_limit(inputs.settings.max_num_seqs)
    target = pool.target_ongoing_requests or max(1.0, TARGET_SHARE * concurrency)
    return PoolSizing(concurrency=concurrency, target_ongoing_requests=min(target, most), max_ongoing_requests=most)
