"""Fleets of unlike pools around the seed geometry, and what their replicas offer."""

from dataclasses import replace

from hybrid_serve.engine.fake import report_as_planned
from hybrid_serve.facts.capabilities import CAPABILITIES
from hybrid_serve.facts.model import Fingerprint
from hybrid_serve.negotiation.agreement import DeclaredPool, FleetFacts
from hybrid_serve.negotiation.offer import PlanAnswer, ReplicaOffer
from hybrid_serve.plan.inputs import PlanInputs, Workload
from hybrid_serve.plan.kv_plan import EngineReport, Policy
from tests.cases import case_named, inputs_of

GIB = 2**30
TARGET = Fingerprint(geometry="a" * 16, weights="b" * 16)
DRAFTER = Fingerprint(geometry="c" * 16, weights="d" * 16)
RETRAINED = Fingerprint(geometry="c" * 16, weights="e" * 16)

SEED = inputs_of(case_named("seed-measured-20g"), CAPABILITIES["0.29.0"])


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def problem(gib: float = 20, **settings: object) -> PlanInputs:
    """The seed geometry in some memory, planned for requests of 4,096 tokens."""
    changed = replace(SEED.settings, **settings)  # type: ignore[arg-type]
    workload = Workload(contexts=((4096, 1.0),))
    return replace(SEED, settings=changed, kv_memory_bytes=int(gib * GIB), workload=workload)


def fleet_of(
    pools: dict[str, PlanInputs],
    *,
    max_model_len: int | None = 32768,
    guessed: tuple[str, ...] = (),
    policy: Policy = "best",
) -> FleetFacts:
    """A fleet of these pools; those named in `guessed` are not known."""
    declared = [DeclaredPool(name=name, inputs=inputs, known=name not in guessed) for name, inputs in pools.items()]
    return FleetFacts.of(
        model_name="seed",
        target_fingerprint=TARGET,
        drafter_fingerprint=DRAFTER,
        max_model_len=max_model_len,
        policy=policy,
        pools=declared,
    )


def offer_of(
    fleet: FleetFacts, pool: str, replica_id: str = "r1", *, gib: float | None = None, drafter: Fingerprint = DRAFTER
) -> ReplicaOffer:
    """What a replica offers that measured `gib` of KV memory (default: what its pool declares)."""
    declared = fleet.pool(pool)
    assert declared is not None
    memory = declared.inputs.kv_memory_bytes if gib is None else int(gib * GIB)
    return ReplicaOffer(
        replica_id=replica_id,
        pool=pool,
        model_name=fleet.model_name,
        target_fingerprint=fleet.target_fingerprint,
        drafter_fingerprint=drafter,
        inputs=replace(declared.inputs, kv_memory_bytes=memory),
        policy=fleet.policy,
        fleet=fleet,
    )


def report_of(answer: PlanAnswer) -> EngineReport:
    """What an engine reports that runs its answer exactly."""
    assert answer.decision.plan is not None, answer.refusal
    return report_as_planned(answer.decision.plan, answer.inputs.settings.prefix_match_unit)
