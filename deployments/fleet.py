"""The pools of one model, planned and agreed before anything is deployed: what the builder and `fleet plan` look at."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from deployments.config import ModelConfig, ReplicaConfig, ServedModel, ServedPool
from deployments.pair import Pair, inputs_for, read_pair
from deployments.pool_device import PoolDevice, pool_device
from deployments.sizing import PoolSizing, guessed_sizing, size_pool
from hybrid_serve.facts.device import DeviceFacts, DeviceKind
from hybrid_serve.facts.errors import FactsError, Problem
from hybrid_serve.negotiation.agreement import Agreement, DeclaredPool, FleetFacts, Refusal, agree, inputs_under
from hybrid_serve.plan.decide import Decision, decide
from hybrid_serve.plan.inputs import PlanInputs
from hybrid_serve.plan.verdict import Impossible


@dataclass(frozen=True, kw_only=True)
class PoolProblem:
    """Why pools can't be deployed. One problem that several pools have is told once."""

    pools: tuple[str, ...]
    reason: str
    remedy: str

    def __str__(self) -> str:
        return f"{'pool' if len(self.pools) == 1 else 'pools'} {', '.join(self.pools)}: {self.text}"

    @property
    def text(self) -> str:
        """Without the pools' names."""
        return f"{self.reason.rstrip('.')}\n  what to change: {self.remedy.rstrip('.')}"


@dataclass(frozen=True, kw_only=True)
class BoundPool:
    """One pool as it is deployed: what follows from what its replicas are bound with, and from nothing else.

    Attributes:
        config: what its replicas are bound with.
        inputs: the planning problem of one replica, under the agreement.
    """

    config: ReplicaConfig
    inputs: PlanInputs
    decision: Decision
    sizing: PoolSizing

    @property
    def name(self) -> str:
        return self.config.pool.name


@dataclass(frozen=True, kw_only=True)
class PlannedPool(BoundPool):
    """One pool that can be deployed.

    Attributes:
        device: what it is planned for, as far as it is known where the app is built.
    """

    device: PoolDevice


@dataclass(frozen=True, kw_only=True)
class PlannedModel:
    """One model over its pools.

    Attributes:
        agreement: None if not even one pool can be deployed.
        pools: those that can be, planned under the agreement; with `problems` that is not all of them, and what the
            others agree on is shown for want of the whole.
    """

    name: str
    agreement: Agreement | None
    pools: tuple[PlannedPool, ...]
    problems: tuple[PoolProblem, ...]


@dataclass(frozen=True, kw_only=True)
class _Declared:
    served: ServedPool
    device: PoolDevice
    pair: Pair
    inputs: PlanInputs

    @property
    def name(self) -> str:
        return self.served.pool.name


def plan_model(served: ServedModel, measured: Mapping[str, DeviceFacts] | None = None) -> PlannedModel:
    """Plan every pool and let them agree; what is wrong with any of them is in `problems`, all of it at once.

    `measured`: by pool, the device that its running replicas have; it counts over what is known here.
    """
    problems: list[PoolProblem] = []
    declared = list(_declare(served.served_pools, measured or {}, problems))
    facts, agreement = None, None
    while declared and agreement is None:
        facts = _facts(served, declared)
        match agree(facts):
            case Refusal(pool=pool, reason=reason, remedy=remedy):
                problems.append(PoolProblem(pools=(pool,), reason=reason, remedy=remedy))
                declared = [one for one in declared if one.name != pool]
            case Agreement() as agreed:
                agreement = agreed
    if facts is None or agreement is None:
        return PlannedModel(name=served.name, agreement=None, pools=(), problems=_merged(problems))
    problems += _too_short(agreement, declared)
    pools = tuple(_planned(one, facts, agreement) for one in declared)
    return PlannedModel(name=served.name, agreement=agreement, pools=pools, problems=_merged(problems))


def _declare(
    pools: Iterable[ServedPool], measured: Mapping[str, DeviceFacts], problems: list[PoolProblem]
) -> Iterator[_Declared]:
    """Facts of every pool; the pair is read once for each kind of device, so that all pools mean one revision."""
    pairs: dict[tuple[DeviceKind, str], Pair | FactsError] = {}
    for served in pools:
        name = served.pool.name
        try:
            device = pool_device(served.pool, measured.get(name))
            key = (device.facts.kind, served.engine.mamba_ssm_cache_dtype)
            if key not in pairs:
                read = next((pair for pair in pairs.values() if isinstance(pair, Pair)), None)
                pairs[key] = _read(served, device.facts.kind, read)
            pair = pairs[key]
            if isinstance(pair, FactsError):
                raise pair
            inputs = inputs_for(served, pair, device.facts)
        except FactsError as error:
            problems += [PoolProblem(pools=(name,), reason=p.reason, remedy=p.remedy) for p in error.problems]
            continue
        found = [problem for check in (_no_patch, _too_few_gpus) if (problem := check(served, inputs))]
        problems += [PoolProblem(pools=(name,), reason=p.reason, remedy=p.remedy) for p in found]
        if not found:
            yield _Declared(served=served, device=device, pair=pair, inputs=inputs)


def _read(served: ServedPool, kind: DeviceKind, read: Pair | None) -> Pair | FactsError:
    """The pair for one kind of device; at the commits of `read`, if it was read for another kind before."""
    try:
        return read_pair(served if read is None else replace(served, model=_pinned(served.model, read)), kind)
    except FactsError as error:
        return error


def _no_patch(served: ServedPool, inputs: PlanInputs) -> Problem | None:
    """A release that can be planned for and not run on a plan: the engine would refuse when it starts."""
    if inputs.capabilities.patch is not None or served.engine.implementation != "vllm":
        return None
    return Problem(
        reason=f"no KV plan can be applied to vLLM {inputs.capabilities.version} yet",
        remedy="Take an image with a release that hybrid_serve has a patch for, and set the pool's vllm to it",
    )


def _too_few_gpus(served: ServedPool, inputs: PlanInputs) -> Problem | None:
    """One actor holds all GPUs of a replica, so they are of one node; vLLM starts a process for each."""
    gpus, size = served.pool.num_gpus, inputs.settings.tensor_parallel_size
    if inputs.device != "cuda" or gpus is None or gpus >= size or (size == 1 and gpus > 0):
        return None
    return Problem(
        reason=f"num_gpus is {gpus:g}, and tensor_parallel_size {size} needs {size} GPUs for each replica",
        remedy="Leave num_gpus out, or lower tensor_parallel_size",
    )


def _facts(served: ServedModel, declared: list[_Declared]) -> FleetFacts:
    """Fingerprints are the same whichever device the pair was read for."""
    pair = declared[0].pair
    configured = served.engine.max_model_len
    return FleetFacts.of(
        model_name=served.name,
        target_fingerprint=pair.target.fingerprint,
        drafter_fingerprint=pair.drafter.fingerprint if pair.drafter else None,
        max_model_len=configured if isinstance(configured, int) else None,
        policy=served.engine.policy,
        pools=[DeclaredPool(name=one.name, inputs=one.inputs, known=one.device.known) for one in declared],
    )


def _too_short(agreement: Agreement, declared: list[_Declared]) -> Iterator[PoolProblem]:
    """The workload may have contexts that the fleet's minimum leaves out: the pools that can't hold them."""
    for one in declared:
        longest = max((tokens for tokens, _ in one.inputs.workload.contexts), default=0)
        if longest <= agreement.max_model_len or not one.device.known:
            continue
        settings = replace(one.inputs.settings, max_model_len=longest)
        chosen = decide(replace(one.inputs, settings=settings), one.served.engine.policy).chosen
        if isinstance(chosen, Impossible):
            yield PoolProblem(
                pools=(one.name,),
                reason=f"the workload has contexts of {longest:,} tokens, and the fleet agrees on max_model_len "
                f"{agreement.max_model_len:,}, as {chosen.reason}",
                remedy="give this pool more KV memory, leave it out, or plan for shorter contexts",
            )


def _planned(one: _Declared, facts: FleetFacts, agreement: Agreement) -> PlannedPool:
    served = one.served
    config = ReplicaConfig(
        model=_pinned(served.model, one.pair),
        engine=served.engine.model_copy(update={"max_model_len": agreement.max_model_len}),
        workload=served.workload,
        pool=served.pool.model_copy(update={"device": one.device.facts.kind}),
        fleet=facts,
    )
    bound = bound_pool(config, agreement)
    return PlannedPool(
        config=config, device=one.device, inputs=bound.inputs, decision=bound.decision, sizing=bound.sizing
    )


def bound_pool(config: ReplicaConfig, agreement: Agreement) -> BoundPool:
    """One pool from what its replicas are bound with and what its model's pools agreed on. Pure: no file or device is
    looked at, so a generation that was planned once is the same pool wherever it is deployed from.
    """
    declared = config.fleet.pool(config.pool.name)
    assert declared is not None, f"pool {config.pool.name} is one of its fleet's"
    inputs = inputs_under(agreement, declared.inputs)
    decision = decide(inputs, config.engine.policy)
    plan = decision.plan
    sizing = guessed_sizing(inputs, config.pool) if plan is None else size_pool(plan, inputs, config.pool)
    return BoundPool(config=config, inputs=inputs, decision=decision, sizing=sizing)


def _pinned(model: ModelConfig, pair: Pair) -> ModelConfig:
    """Hub ids at the commits that were read here: a branch may move before the last replica starts."""
    drafter = pair.drafter.revision if pair.drafter else None
    return model.model_copy(update={"target_revision": pair.target.revision, "drafter_revision": drafter})


def _merged(problems: list[PoolProblem]) -> tuple[PoolProblem, ...]:
    found: dict[tuple[str, str], PoolProblem] = {}
    for problem in problems:
        key = (problem.reason, problem.remedy)
        before = found[key].pools if key in found else ()
        found[key] = replace(problem, pools=(*before, *problem.pools))
    return tuple(found.values())
