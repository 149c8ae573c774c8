"""Replicas' configurations of several generations, prepared without a planner and without weights."""

from pathlib import Path
from typing import Any

from deployments.config import AppConfig, ReplicaConfig
from deployments.fleet import plan_model
from deployments.pair import inputs_for, read_pair
from deployments.preparing import Planned, Prepared, prepare
from hybrid_serve.negotiation.answers import agreement_with, answer_to
from hybrid_serve.negotiation.offer import ReplicaOffer
from tests.demo_app import CPU, app_values


def replica_config(folder: Path, generation: str, **engine: Any) -> ReplicaConfig:
    """Of a demo replica on a fake engine. `fake` are the fake's own options, the rest are engine options."""
    values = app_values(folder, vllm_args={"token_s": 0.002, **engine.pop("fake", {})}, **engine)
    (served,) = AppConfig.model_validate(values).served
    planned = plan_model(served)
    assert not planned.problems, planned.problems
    return ReplicaConfig(**{**vars(planned.pools[0].config), "generation": generation})


def planned_for(config: ReplicaConfig) -> Planned:
    """As `deployments.preparing.plan`, answered here."""
    pair = read_pair(config, "cpu")
    offer = ReplicaOffer(
        replica_id="r1",
        pool=config.pool.name,
        model_name=str(config.model.name),
        target_fingerprint=pair.target.fingerprint,
        drafter_fingerprint=pair.drafter.fingerprint if pair.drafter else None,
        inputs=inputs_for(config, pair, CPU),
        policy=config.engine.policy,
        fleet=config.fleet,
    )
    answer = answer_to(offer, agreement_with(offer), "planner")
    return Planned(config=config, device=CPU, pair=pair, offer=offer, answer=answer)


async def prepared(folder: Path, generation: str = "g1", **engine: Any) -> Prepared:
    return await prepare(planned_for(replica_config(folder, generation, **engine)))
