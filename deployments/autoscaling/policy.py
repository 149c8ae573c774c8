"""Ray Serve's autoscaling policies: one instance for each pool's deployment, one for the ingress.

Ray Serve pickles a policy with this module by value into its controller. What is shared lives in
`deployments.autoscaling.shared`, so the package must be installed where the controller runs. Ray Serve applies the
bounds and the upscale and downscale delays around what a policy answers, but no upscale delay to a deployment without
running replicas (`_apply_default_params`): rightly where nothing runs, but a pool is not alone. So while other pools of
its model serve, its policy holds such an increase back for the delay itself. An exception here would stop the
controller's loop for every app, so none leaves.

Each policy is told the digest of the generation that its deployment belongs to. No decision depends on it: Ray Serve
2.60 takes new arguments of a deployment's replicas only if it sees another version or other options
(`DeploymentState.deploy`), and this option is the one that differs without any replica being touched.
"""

import logging
import time
from typing import Any

from ray.serve.config import AutoscalingContext

from deployments.autoscaling import decide, demand, shared
from deployments.autoscaling.facts import PoolFacts

logger = logging.getLogger("ray.serve")

_REMIND_S = 60.0


class PoolPolicy:
    """Target replicas of one pool by the KV tokens that the whole model's requests need."""

    def __init__(
        self,
        pool: str,
        pools: list[dict[str, Any]],
        utilisation: float = decide.UTILISATION,
        margin: float = decide.MARGIN,
        start_patience_s: float = 600.0,
        generation: str = "",
    ) -> None:
        """`pools` are `PoolFacts.to_json()` of all pools of the model that `pool` serves, itself included."""
        self._pool = pool
        self._facts = [PoolFacts.from_json(facts) for facts in pools]
        self._utilisation = utilisation
        self._margin = margin
        self._start_patience_s = start_patience_s
        self._since = time.monotonic()
        self._logged: dict[str, float] = {}

    def __call__(self, ctx: AutoscalingContext) -> tuple[int, dict[str, Any]]:
        try:
            return self._decide(ctx), {}
        except Exception as error:
            text = f"autoscaling of {self._pool} failed, it stays at {ctx.target_num_replicas} replicas: {error!r}"
            self._say("failed", text, logging.ERROR)
            return ctx.target_num_replicas, {}

    def _decide(self, ctx: AutoscalingContext) -> int:
        now = time.monotonic()
        current: int = ctx.target_num_replicas
        figures = shared.figures_of(ctx.app_name or "")
        figures.record_pool(
            self._pool,
            min_replicas=ctx.capacity_adjusted_min_replicas,
            max_replicas=ctx.capacity_adjusted_max_replicas,
            target=current,
            running=[replica.unique_id for replica in ctx.running_replicas],
            queued=ctx.total_queued_requests or 0.0,
            reported=shared.newest(ctx.raw_metrics or {}, lambda replica: replica.unique_id),
            start_patience_s=self._start_patience_s,
            now=now,
        )
        seen = {facts.name: pool for facts in self._facts if (pool := figures.pool(facts.name, now)) is not None}
        missing = [facts.name for facts in self._facts if facts.name not in seen]
        if missing and now - self._since <= shared.FRESH_S:
            # The controller has just begun, and asks one pool after the other: what is to be theirs is not ours.
            return current
        queues = figures.queues_of(self._facts[0].model, now)
        pools = [demand.pool_of(facts, seen[facts.name]) for facts in self._facts if facts.name in seen]
        target = decide.decide_targets(
            pools,
            demand.demands_of(self._facts, seen, queues),
            utilisation=self._utilisation,
            margin=self._margin,
        )[self._pool]
        delayed = target.replicas > current and not ctx.running_replicas and self._others_serve(pools, seen)
        waits = figures.must_wait(self._pool, wished=delayed, delay_s=ctx.config.upscale_delay_s, now=now)
        if target.replicas < current and (unknown := _unknown(missing, seen, queues is not None)):
            self._say(unknown, f"{self._pool} stays at {current} replicas: {unknown}")
            return current
        if target.reason:
            after = f" (after {ctx.config.upscale_delay_s:g} s: other pools of the model serve)" if waits else ""
            self._say(f"{current} -> {target.replicas}{after}", target.reason + after)
        return current if waits else target.replicas

    def _others_serve(self, pools: list[decide.Pool], seen: dict[str, shared.PoolNow]) -> bool:
        """Whether another pool of the model has replicas that run, or is cheaper and has some that start.

        Those that start count because a controller that was restarted takes a while to find what runs; of a dearer
        pool they do not, lest the cheap one wait for it. What is not known may run.
        """
        own = next(pool for pool in pools if pool.name == self._pool)
        return len(pools) < len(self._facts) or any(
            seen[pool.name].running or (pool.target and pool.cost_per_token < own.cost_per_token)
            for pool in pools
            if pool is not own
        )

    def _say(self, about: str, text: str, level: int = logging.INFO) -> None:
        """Once a minute about the same: the controller asks several times a second."""
        now = time.monotonic()
        if now - self._logged.get(about, float("-inf")) >= _REMIND_S:
            logger.log(level, "%s", text)
            self._logged = {old: at for old, at in self._logged.items() if now - at < _REMIND_S} | {about: now}


class IngressPolicy:
    """Leaves the ingress as it is, and keeps what its replicas tell of requests that wait."""

    def __init__(self, generation: str = "") -> None:
        pass

    def __call__(self, ctx: AutoscalingContext) -> tuple[int, dict[str, Any]]:
        try:
            shared.figures_of(ctx.app_name or "").record_ingress(
                ctx.deployment_name,
                running=[replica.unique_id for replica in ctx.running_replicas],
                reported=shared.newest(ctx.raw_metrics or {}, lambda replica: replica.unique_id),
                now=time.monotonic(),
            )
        except Exception as error:
            logger.error("the ingress's queue was not read: %r", error)
        return ctx.target_num_replicas, {}


def _unknown(missing: list[str], seen: dict[str, shared.PoolNow], ingress: bool) -> str:
    """What is missing for a decision to have less; empty if nothing is."""
    silent = [f"{pool.silent} of {name}" for name, pool in seen.items() if pool.silent]
    if missing:
        return f"nothing is known of {', '.join(missing)}"
    if silent:
        return f"no figures from replicas: {', '.join(silent)}"
    return "" if ingress else "no figures from the ingress"
