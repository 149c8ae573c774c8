"""Configurations, offers and reports of demo size, for tests that need one of each."""

from pathlib import Path
from typing import Any

from deployments.config import AppConfig, ServedPool
from deployments.pair import Pair, inputs_for, read_pair
from hybrid_serve.facts.device import DeviceFacts
from hybrid_serve.negotiation.agreement import DeclaredPool, FleetFacts
from hybrid_serve.negotiation.offer import ReplicaOffer

GIB = 2**30
CPU = DeviceFacts(kind="cpu", name="cpu", memory_bytes=16 * GIB)


def app_values(folder: Path, **engine: Any) -> dict[str, Any]:
    """A configuration over the pair in `folder`, with a fake engine, on a CPU."""
    options = {
        "implementation": "fake",
        "num_speculative_tokens": 7,
        "max_model_len": 2048,
        "max_num_batched_tokens": 2048,
        "max_num_seqs": 16,
        "kv_memory": "1GiB",
    }
    return {
        "model": {"name": "demo", "target": str(folder / "target"), "drafter": str(folder / "draft")},
        "engine": {**options, **engine},
        "workload": {"contexts": [{"tokens": 512}]},
        "pool": {"name": "cpu", "device": "cpu", "num_cpus": 0.1, "min_replicas": 1, "max_replicas": 1},
    }


def demo_pair(config: AppConfig) -> Pair:
    return read_pair(_only_pool(config), "cpu")


def demo_offer(folder: Path, replica_id: str = "r1", **engine: Any) -> ReplicaOffer:
    """What a replica of `app_values` offers."""
    config = AppConfig.model_validate(app_values(folder, **engine))
    served, pair = _only_pool(config), demo_pair(config)
    inputs = inputs_for(served, pair, CPU)
    drafter = pair.drafter.fingerprint if pair.drafter else None
    fleet = FleetFacts.of(
        model_name=str(served.model.name),
        target_fingerprint=pair.target.fingerprint,
        drafter_fingerprint=drafter,
        max_model_len=inputs.settings.max_model_len,
        policy=served.engine.policy,
        pools=[DeclaredPool(name=served.pool.name, inputs=inputs, known=True)],
    )
    return ReplicaOffer(
        replica_id=replica_id,
        pool=served.pool.name,
        model_name=fleet.model_name,
        target_fingerprint=pair.target.fingerprint,
        drafter_fingerprint=drafter,
        inputs=inputs,
        policy=fleet.policy,
        fleet=fleet,
    )


def _only_pool(config: AppConfig) -> ServedPool:
    ((served,),) = (model.served_pools for model in config.served)
    return served
