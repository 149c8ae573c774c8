"""What a fleet agrees on: one value for all its replicas, everything else per replica. Pure: no Ray, no clock.

What must be the same on every replica that serves one model name, and where each rule comes from:

- *Fingerprints* of target and drafter: a client may be answered by any replica, so all must hold the same weights.
- *max_model_len*: the configured one, which every pool must hold, or the fleet's minimum: the largest that every pool
  holds. vLLM's `/v1/models` advertises it, and a request is routed to any pool. A pool holds what its plan's admission
  check lets in (`hybrid_serve.plan.build.fits`, after vLLM 0.29.0, v1/core/kv_cache_utils.py, get_kv_cache_configs).
- *prefix_match_unit*: tokens between two prefix hashes. vLLM 0.29.0 (v1/core/kv_cache_utils.py,
  resolve_kv_cache_block_sizes) hashes every `prefix_match_unit` tokens (config/cache.py), by default the greatest
  common divisor of the groups' block sizes, and refuses a unit that does not divide each of them. So the one unit that
  every pool's plan can live with is the greatest common divisor over all pools. An engine with one group hashes whole
  blocks whatever it is told (the same function; UnitaryKVCacheCoordinator; refused from 0.32), and so does one of a
  release without the option (before 0.26, `EngineCapabilities.sets_prefix_match_unit`): its own must be the agreed one.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from functools import lru_cache
from math import gcd
from typing import Any

from hybrid_serve.facts.capabilities import capabilities
from hybrid_serve.facts.model import Fingerprint
from hybrid_serve.plan.decide import decide
from hybrid_serve.plan.inputs import PlanInputs
from hybrid_serve.plan.kv_plan import KVPlan, Policy
from hybrid_serve.plan.verdict import Impossible


@dataclass(frozen=True, kw_only=True)
class DeclaredPool:
    """One pool as far as it is known before its replicas measure.

    Attributes:
        inputs: the planning problem of one replica. Where the fleet's minimum is asked for, its max_model_len is the
            most that may be agreed: the model's own limit.
        known: False if the device is a guess: then nothing but a replica itself can refuse for want of memory.
    """

    name: str
    inputs: PlanInputs
    known: bool


@dataclass(frozen=True, kw_only=True)
class FleetFacts:
    """What is declared of one model's fleet. Make one with `FleetFacts.of`.

    Attributes:
        generation: 16 hex digits over all the rest: two fleets of one generation are equal.
        max_model_len: the configured one; None for the fleet's minimum.
    """

    generation: str
    model_name: str
    target_fingerprint: Fingerprint
    drafter_fingerprint: Fingerprint | None
    max_model_len: int | None
    policy: Policy
    pools: tuple[DeclaredPool, ...]

    @classmethod
    def of(
        cls,
        *,
        model_name: str,
        target_fingerprint: Fingerprint,
        drafter_fingerprint: Fingerprint | None,
        max_model_len: int | None,
        policy: Policy,
        pools: Iterable[DeclaredPool],
    ) -> "FleetFacts":
        """The facts with their generation.

        Raises:
            ValueError: no pool, or two of one name.
        """
        pools = tuple(pools)
        names = [pool.name for pool in pools]
        if not names or len(set(names)) < len(names):
            raise ValueError(f"a fleet has one pool or more, each with its own name; these are {names}")
        facts = cls(
            generation="",
            model_name=model_name,
            target_fingerprint=target_fingerprint,
            drafter_fingerprint=drafter_fingerprint,
            max_model_len=max_model_len,
            policy=policy,
            pools=pools,
        )
        return replace(facts, generation=facts.digest())

    def digest(self) -> str:
        """What `generation` must be. The same in every process and on every machine."""
        text = json.dumps(_plain(replace(self, generation="")), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def pool(self, name: str) -> DeclaredPool | None:
        return next((pool for pool in self.pools if pool.name == name), None)

    def measured(self, name: str, inputs: PlanInputs) -> "FleetFacts":
        """The same fleet (and generation) with what a replica of one pool measured in place of what was declared.

        The length that is asked for stays the declared one.
        """
        return replace(
            self,
            pools=tuple(
                replace(pool, inputs=_with_length(inputs, pool.inputs.settings.max_model_len), known=True)
                if pool.name == name
                else pool
                for pool in self.pools
            ),
        )


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """What every replica of one generation runs with.

    Attributes:
        max_model_len: in tokens.
        prefix_match_unit: tokens between two prefix hashes; None with prefix caching off everywhere.
    """

    generation: str
    model_name: str
    target_fingerprint: Fingerprint
    drafter_fingerprint: Fingerprint | None
    max_model_len: int
    prefix_match_unit: int | None

    def is_of(self, fleet: FleetFacts) -> bool:
        """It can be this fleet's agreement. Its length, if none is configured, and its unit are not derived again."""
        return (
            self.generation == fleet.generation
            and self.model_name == fleet.model_name
            and self.target_fingerprint == fleet.target_fingerprint
            and self.drafter_fingerprint == fleet.drafter_fingerprint
            and fleet.max_model_len in (None, self.max_model_len)
        )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "Agreement":
        """Inverse of `to_json`.

        Raises:
            ValueError: a field is missing or unknown.
        """
        try:
            drafter = value["drafter_fingerprint"]
            prints = {
                "target_fingerprint": Fingerprint(**value["target_fingerprint"]),
                "drafter_fingerprint": None if drafter is None else Fingerprint(**drafter),
            }
            return cls(**{**value, **prints})
        except (KeyError, TypeError) as error:
            raise ValueError(f"not an agreement: {error}; expected the fields of Agreement.to_json()") from error


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """Why a fleet does not agree, or why a replica may not join it. A value, not an exception.

    Attributes:
        pool: the one that can't.
        reason: what, with the numbers.
        remedy: what to change.
    """

    pool: str
    reason: str
    remedy: str

    def __str__(self) -> str:
        return f"pool {self.pool}: {self.reason}; {self.remedy}"


def agree(fleet: FleetFacts) -> Agreement | Refusal:
    """What the pools agree on, or the pool that can't and why.

    A pool whose device is a guess is not refused for want of memory: its replicas measure, and are answered then.
    """
    length = fleet.max_model_len if fleet.max_model_len is not None else _fleets_minimum(fleet)
    if isinstance(length, Refusal):
        return length
    plans: dict[str, KVPlan] = {}
    for pool in fleet.pools:
        chosen = decide(_with_length(pool.inputs, length), fleet.policy).chosen
        if isinstance(chosen, Impossible):
            if pool.known or chosen.max_model_len is None:
                return _too_long(pool, chosen)
        elif pool.inputs.settings.prefix_caching:
            plans[pool.name] = chosen.plan
    unit = _common_unit(plans)
    if isinstance(unit, Refusal):
        return unit
    return Agreement(
        generation=fleet.generation,
        model_name=fleet.model_name,
        target_fingerprint=fleet.target_fingerprint,
        drafter_fingerprint=fleet.drafter_fingerprint,
        max_model_len=length,
        prefix_match_unit=unit,
    )


def inputs_under(agreement: Agreement, inputs: PlanInputs) -> PlanInputs:
    """A replica's planning problem with the agreed values in place of its own."""
    told = inputs.settings.prefix_caching and inputs.capabilities.sets_prefix_match_unit
    unit = agreement.prefix_match_unit if told else None
    settings = replace(inputs.settings, max_model_len=agreement.max_model_len, prefix_match_unit=unit)
    return replace(inputs, settings=settings)


def prefix_unit(plan: KVPlan) -> int:
    """Tokens between two prefix hashes of an engine on this plan, if it is told nothing."""
    return gcd(*(group.block_size for group in plan.groups))


def refused_unit(plan: KVPlan, unit: int | None, pool: str) -> Refusal | None:
    """Why an engine on this plan can't hash prefixes every `unit` tokens; None if it can."""
    if unit is None:
        return None
    own = prefix_unit(plan)
    told = len(plan.groups) > 1 and capabilities(plan.vllm).sets_prefix_match_unit
    if own == unit or (told and own % unit == 0):
        return None
    blocks = ", ".join(f"{size:,}" for size in sorted({group.block_size for group in plan.groups}))
    why = "" if told else f", which vLLM {plan.vllm} hashes every {own:,} tokens whatever it is told"
    return Refusal(
        pool=pool,
        reason=f"the fleet hashes prefixes every {unit:,} tokens, and this pool's plan has blocks of {blocks} tokens"
        f"{why}",
        remedy="declare the pool's accelerator_type, so that the fleet agrees with its plan in view, or turn prefix "
        "caching off in this pool",
    )


def _with_length(inputs: PlanInputs, length: int) -> PlanInputs:
    return replace(inputs, settings=replace(inputs.settings, max_model_len=length))


def _fleets_minimum(fleet: FleetFacts) -> int | Refusal:
    """The largest max_model_len that every known pool holds; by the guesses if no pool is known.

    Plans change with the length, so whoever can't hold what the others came down to lowers it further.
    """
    known = [pool for pool in fleet.pools if pool.known] or list(fleet.pools)
    pools = sorted(known, key=lambda pool: pool.inputs.kv_memory_bytes)  # who holds least is looked at most
    length = min(pool.inputs.settings.max_model_len for pool in fleet.pools)
    settled = 0
    while settled != length:
        settled = length
        for pool in pools:
            held = _largest_length(_with_length(pool.inputs, length), fleet.policy)
            if isinstance(held, Impossible):
                return _too_long(pool, held)
            length = held
    return length


@lru_cache(maxsize=1024)
def _largest_length(inputs: PlanInputs, policy: Policy) -> int | Impossible:
    """The largest max_model_len, at most the asked one, that a plan is found for; one more token has none.

    A refusal names what the plans that it looked at hold. They were made for the longer requests; those made for
    shorter ones may hold more, so the search goes on from there, by halves.
    """
    held, refused = 0, inputs.settings.max_model_len + 1
    asked = refused - 1
    while refused - held > 1:
        chosen = decide(_with_length(inputs, asked), policy).chosen
        if not isinstance(chosen, Impossible):
            held = asked
        elif not chosen.max_model_len and not held:
            return chosen
        else:
            refused = asked
        hint = chosen.max_model_len if isinstance(chosen, Impossible) else None
        asked = hint if hint and held < hint < refused and not held else (held + refused) // 2
    return held


def _too_long(pool: DeclaredPool, chosen: Impossible) -> Refusal:
    largest = f" (the largest max_model_len that fits is {chosen.max_model_len:,})" if chosen.max_model_len else ""
    return Refusal(pool=pool.name, reason=f"{chosen.reason}{largest}", remedy=chosen.remedy)


def _common_unit(plans: dict[str, KVPlan]) -> int | None | Refusal:
    """The greatest common divisor of all plans' units; None without plans."""
    if not plans:
        return None
    unit = gcd(*(prefix_unit(plan) for plan in plans.values()))
    return next((refused for name, plan in plans.items() if (refused := refused_unit(plan, unit, name))), unit)


def _plain(value: Any) -> Any:
    """The value in plain JSON types, the same whatever the order of a set."""
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, frozenset | set):
        return sorted(_listed(value), key=str)
    return list(_listed(value)) if isinstance(value, tuple | list) else value


def _listed(values: Iterable[Any]) -> Iterator[Any]:
    return (_plain(value) for value in values)
