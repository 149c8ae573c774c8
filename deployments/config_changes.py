"""What differs between two configurations, what each difference costs, and what it does to the pools. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from pydantic import BaseModel

from deployments.config import AppConfig, EngineOptions, PoolConfig, ReplicaConfig, ServedModel
from deployments.config_fields import CHANGES, Change, Section, change_of
from deployments.fleet import PoolProblem
from hybrid_serve.facts.model import Fingerprint
from hybrid_serve.rollout.wire import GenerationOffer, PoolOffer

How = Literal["adopt", "replan", "replace", "add", "remove"]
"""What a pool's replicas do: take new arguments as they run, start an engine again, be replaced, come, go."""

SECTIONS = ("limits", "routing", "scaling", "ingress", "rollout")
_OF_A_MODEL = ("model", "engine", "workload")


@dataclass(frozen=True, kw_only=True)
class FieldChange:
    """One field. `path` is as overrides name it: `pools.h200.kv_memory`; values are plain, None where there is none."""

    path: str
    old: Any
    new: Any
    cost: Change


@dataclass(frozen=True, kw_only=True)
class PoolFigures:
    """Of one replica's plan; None where the device is not known."""

    plan_id: str | None
    kv_tokens: int | None
    concurrency: float | None
    num_speculative_tokens: int


@dataclass(frozen=True, kw_only=True)
class PoolChange:
    """One pool. `before` is None for one that is added, `after` for one that is removed."""

    pool: str
    model: str
    how: How
    before: PoolFigures | None
    after: PoolFigures | None

    @property
    def restarts(self) -> bool:
        """Its engines start again, in the replicas that run or in new ones."""
        return self.how in ("replan", "replace")


@dataclass(frozen=True, kw_only=True)
class Changes:
    """From one generation to another.

    Attributes:
        renamed: (old name, new name) of pools that differ in nothing else; they are among those added and removed.
    """

    fields: tuple[FieldChange, ...]
    pools: tuple[PoolChange, ...]
    renamed: tuple[tuple[str, str], ...]

    @property
    def cost(self) -> Change | None:
        """The dearest of all; None if nothing differs."""
        costs = {change.cost for change in self.fields}
        return max(costs, key=CHANGES.index, default=None)

    @property
    def ingress_restarts(self) -> bool:
        """The ingress's replicas are replaced."""
        return any(one.path.startswith("ingress.") and one.cost == "replace" for one in self.fields)

    def to_json(self) -> dict[str, Any]:
        return {
            "cost": self.cost,
            "fields": [asdict(change) for change in self.fields],
            "pools": [{**asdict(change), "restarts": change.restarts} for change in self.pools],
            "renamed": [list(names) for names in self.renamed],
            "ingress_restarts": self.ingress_restarts,
        }


def changes_between(old: GenerationOffer, new: GenerationOffer) -> Changes:
    """Field by field and pool by pool."""
    before, after = AppConfig.model_validate(old.config), AppConfig.model_validate(new.config)
    return Changes(
        fields=field_changes(before, after),
        pools=pool_changes(old.pools, new.pools),
        renamed=renamed_pools(before, after),
    )


def field_changes(old: AppConfig, new: AppConfig) -> tuple[FieldChange, ...]:
    """Every field that differs, whichever form the two configurations have. Models and pools go by their names."""
    return tuple(_field_changes(old, new))


def _field_changes(old: AppConfig, new: AppConfig) -> Iterator[FieldChange]:
    for one, other, prefix in _paired_models(old.served, new.served):
        if one is None or other is None:
            name = (one or other).name  # type: ignore[union-attr]
            yield FieldChange(path=f"models.{name}", old=_listed(one), new=_listed(other), cost="replace")
            continue
        for section in _OF_A_MODEL:
            yield from _in_section(f"{prefix}{section}", getattr(one, section), getattr(other, section))
        yield from _in_pools(one.pools, other.pools)
    for section in SECTIONS:
        yield from _in_section(section, getattr(old, section), getattr(new, section))


def _paired_models(
    old: tuple[ServedModel, ...], new: tuple[ServedModel, ...]
) -> Iterator[tuple[ServedModel | None, ServedModel | None, str]]:
    """By name; two configurations of one model each mean the same one, whatever it is called."""
    if len(old) == len(new) == 1:
        yield old[0], new[0], ""
        return
    before, after = {one.name: one for one in old}, {one.name: one for one in new}
    for name in dict.fromkeys([*before, *after]):
        yield before.get(name), after.get(name), f"models.{name}."


def _listed(served: ServedModel | None) -> list[str] | None:
    return None if served is None else [pool.name for pool in served.pools]


def _in_pools(old: Iterable[PoolConfig], new: Iterable[PoolConfig]) -> Iterator[FieldChange]:
    before, after = {pool.name: pool for pool in old}, {pool.name: pool for pool in new}
    for name in dict.fromkeys([*before, *after]):
        one, other, path = before.get(name), after.get(name), f"pools.{name}"
        if one is None or other is None:
            yield FieldChange(path=path, old=_plain(one), new=_plain(other), cost="replace")
            continue
        yield from _in_section(path, one, other, without=("engine",))
        for field in dict.fromkeys([*one.engine, *other.engine]):
            was, is_now = one.engine.get(field), other.engine.get(field)
            if was != is_now:
                cost = change_of(EngineOptions, field)
                yield FieldChange(path=f"{path}.engine.{field}", old=was, new=is_now, cost=cost)


def _in_section(path: str, old: Section, new: Section, without: tuple[str, ...] = ()) -> Iterator[FieldChange]:
    for field in type(old).model_fields:
        was, is_now = getattr(old, field), getattr(new, field)
        if field in without or was == is_now:
            continue
        if isinstance(was, Section) and isinstance(is_now, Section):
            yield from _in_section(f"{path}.{field}", was, is_now)
        else:
            cost = change_of(type(old), field)
            yield FieldChange(path=f"{path}.{field}", old=_plain(was), new=_plain(is_now), cost=cost)


def renamed_pools(old: AppConfig, new: AppConfig) -> tuple[tuple[str, str], ...]:
    """Pools that are there under another name, and differ in nothing else."""
    before = {pool.name: pool for served in old.served for pool in served.pools}
    after = {pool.name: pool for served in new.served for pool in served.pools}
    added = {name: pool for name, pool in after.items() if name not in before}
    found = []
    for name, pool in before.items():
        if name in after:
            continue
        same = [other for other, one in added.items() if one.model_copy(update={"name": name}) == pool]
        if same:
            found.append((name, same[0]))
            del added[same[0]]
    return tuple(found)


def pool_changes(old: Mapping[str, PoolOffer], new: Mapping[str, PoolOffer]) -> tuple[PoolChange, ...]:
    """What happens to the replicas of every pool, in the order of their names as they are configured."""
    return tuple(_pool_change(name, old.get(name), new.get(name)) for name in dict.fromkeys([*old, *new]))


def _pool_change(name: str, old: PoolOffer | None, new: PoolOffer | None) -> PoolChange:
    some = new or old
    assert some is not None, "a pool is in one of the two"
    return PoolChange(
        pool=name, model=some.model, how=how_it_changes(old, new), before=_figures(old), after=_figures(new)
    )


def how_it_changes(old: PoolOffer | None, new: PoolOffer | None) -> How:
    """From the digests: what a replica of `old` does to become one of `new`."""
    if old is None:
        return "add"
    if new is None:
        return "remove"
    if old.placement_digest != new.placement_digest:
        return "replace"
    return "adopt" if old.engine_digest == new.engine_digest else "replan"


def _figures(pool: PoolOffer | None) -> PoolFigures | None:
    if pool is None:
        return None
    return PoolFigures(
        plan_id=pool.plan_id,
        kv_tokens=pool.kv_tokens,
        concurrency=pool.concurrency,
        num_speculative_tokens=pool.num_speculative_tokens,
    )


def retrained(new: GenerationOffer, running: Mapping[str, ReplicaConfig]) -> tuple[tuple[str, PoolProblem], ...]:
    """(model, problem) for each checkpoint in a folder that is no longer what the running generation was planned with.

    Both generations name the same folder, which holds only the newer one: there is nothing to roll back to, and a
    replica that starts meanwhile finds weights that its generation does not mean.

    Args:
        running: by pool, what its replicas are bound with now.
    """
    known: dict[str, Fingerprint] = {}
    for config in running.values():
        known |= {folder: mark for _, folder, mark in _folders(config)}
    found: dict[tuple[str, str], PoolProblem] = {}
    for name, pool in new.pools.items():
        for role, folder, mark in _folders(pool.config):
            before = known.get(folder)
            if before is None or before == mark:
                continue
            key = (pool.model, folder)
            pools = (*found[key].pools, name) if key in found else (name,)
            found[key] = PoolProblem(
                pools=pools,
                reason=f"the {role} in {folder} was changed in place: the running generation has {before}, the folder "
                f"now holds {mark}, so there would be nothing to roll back to",
                remedy=f"put the new {role} into a folder of its own (the old one must stay as it was), or give a hub "
                "id with a revision",
            )
    return tuple((model, problem) for (model, _), problem in found.items())


def _folders(config: ReplicaConfig) -> Iterator[tuple[str, str, Fingerprint]]:
    """(role, folder, fingerprint) of the checkpoints that lie in folders: those at a commit can't change."""
    model, fleet = config.model, config.fleet
    if model.target is not None and model.target_revision is None:
        yield "target", model.target, fleet.target_fingerprint
    if model.drafter is not None and model.drafter_revision is None and fleet.drafter_fingerprint is not None:
        yield "drafter", model.drafter, fleet.drafter_fingerprint


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", exclude_unset=True)
    if isinstance(value, tuple | list):
        return [_plain(one) for one in value]
    return value
