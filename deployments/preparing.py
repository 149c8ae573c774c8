"""From a replica's configuration to its engine's: facts, plan, weights. Touches no engine."""

import asyncio
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from deployments.config import ReplicaConfig
from deployments.pair import Pair, inputs_for, read_pair, source_of
from hybrid_serve.engine.base import EngineConfig, EngineStartError
from hybrid_serve.facts.device import DeviceFacts
from hybrid_serve.facts.hub import materialise
from hybrid_serve.facts.probe import measure_device
from hybrid_serve.negotiation import client as planner
from hybrid_serve.negotiation.offer import PlanAnswer, ReplicaOffer
from hybrid_serve.plan.group_need import group_needs
from hybrid_serve.plan.verdict import Impossible

logger = logging.getLogger("ray.serve")


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A configuration with the planner's answer to it, which may be a refusal.

    Attributes:
        device: as it was measured for the offer.
    """

    config: ReplicaConfig
    device: DeviceFacts
    pair: Pair
    offer: ReplicaOffer
    answer: PlanAnswer


@dataclass(frozen=True, kw_only=True)
class Prepared(Planned):
    """All that an engine needs is here: it can be started, and started again, without asking anyone."""

    engine: EngineConfig

    def runs_as(self, other: "Prepared") -> bool:
        """True if an engine that runs the one runs the other too."""
        mine, theirs = self.config.engine, other.config.engine
        return mine.implementation == theirs.implementation and self.engine == other.engine


async def plan(config: ReplicaConfig, replica_id: str) -> Planned:
    """Facts of the pair and of this machine's device, and the plan for them.

    Raises:
        FactsError: what is missing or does not fit.
    """
    with phase("facts"):
        device = await asyncio.to_thread(measure_device, config.pool.device)
        pair = await asyncio.to_thread(read_pair, config, device.kind)
        offer = ReplicaOffer(
            replica_id=replica_id,
            pool=config.pool.name,
            model_name=str(config.model.name),
            target_fingerprint=pair.target.fingerprint,
            drafter_fingerprint=pair.drafter.fingerprint if pair.drafter else None,
            inputs=inputs_for(config, pair, device),
            policy=config.engine.policy,
            fleet=config.fleet,
        )
    started = time.monotonic()
    answer = await planner.negotiate(offer, config.pool.negotiation_timeout_s)
    source = f"{answer.source}: {answer.note}" if answer.note else answer.source
    logger.info("plan %.1f s (%s)", time.monotonic() - started, source)
    return Planned(config=config, device=device, pair=pair, offer=offer, answer=answer)


async def prepare(planned: Planned) -> Prepared:
    """The weights on this machine, and the engine's configuration.

    Raises:
        EngineStartError: the replica was refused, or no plan fits.
        FactsError: the weights can't be had.
    """
    config, pair, answer = planned.config, planned.pair, planned.answer
    chosen = answer.decision.chosen
    if isinstance(chosen, Impossible):
        why = answer.refusal or f"{chosen.reason}; {chosen.remedy}"
        raise EngineStartError(f"no KV plan for {planned.offer.model_name}: {why}")
    with phase("weights"):
        target = await asyncio.to_thread(materialise, source_of(str(config.model.target)), pair.target.revision)
        drafter = None
        if pair.drafter is not None:
            drafter = await asyncio.to_thread(materialise, source_of(str(config.model.drafter)), pair.drafter.revision)
    engine = EngineConfig(
        model_name=planned.offer.model_name,
        target_path=str(target),
        drafter_path=None if drafter is None else str(drafter),
        target=pair.target,
        drafter=pair.drafter,
        settings=answer.inputs.settings,
        plan=chosen.plan,
        engine_args=dict(config.engine.vllm_args),
        needs=group_needs(chosen.plan, answer.inputs),
    )
    return Prepared(**vars(planned), engine=engine)


@contextmanager
def phase(name: str) -> Iterator[None]:
    """Logs how long the block took, if it did not fail."""
    started = time.monotonic()
    yield
    logger.info("%s %.1f s", name, time.monotonic() - started)
