"""`key=value` overrides, written into what a configuration file holds."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import yaml
from pydantic import BaseModel

from deployments.config_places import LISTS, Named, Place, all_keys, keys_of, models, pools, sections
from deployments.errors import AppError
from deployments.mistakes import nearest
from deployments.pool_config import OVERRIDING, PoolConfig

_MODEL_SECTIONS = ("model", "engine", "workload", "pool")


class Written(NamedTuple):
    """`places` that were written, and a sentence for each override that has none."""

    places: set[Place]
    mistakes: list[str]


class NoPlace(ValueError):
    """An override has no place or no value; the text says why, and what it might have meant."""


def from_command_line(texts: Iterable[str]) -> dict[str, str]:
    """Overrides of `key=value` arguments.

    Raises:
        AppError: an argument without `=`.
    """
    overrides = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise AppError(f"{text!r} is not key=value, e.g. engine.max_model_len=1024")
        overrides[key] = value
    return overrides


def apply_overrides(values: dict[str, Any], overrides: Mapping[str, Any]) -> Written:
    """Write the overrides into `values`.

    A key is a section (`engine`), a dotted name (`engine.max_model_len`), or a field's own name where only one section
    has it (`max_model_len`). Pools and models go by their names: `pools.h200.max_replicas`,
    `models.demo.engine.kv_memory`. `pool.x` is the one pool, `engine.x` the one model's. Text values are read as YAML.
    """
    written = Written(set(), [])
    for key, value in overrides.items():
        try:
            _write(values, key, _read(value), written)
        except NoPlace as error:
            written.mistakes.append(f"{key}: {error}")
    return written


def _read(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return yaml.safe_load(value)
    except yaml.YAMLError:
        raise NoPlace(f"{value!r} is not YAML") from None


def _write(values: dict[str, Any], key: str, value: Any, written: Written) -> None:
    if key in LISTS:
        values[key] = value
        written.places.add((key,))
        return
    place, field = _find(values, key)
    if not field:
        if not isinstance(value, Mapping):
            raise NoPlace(f"unknown key{nearest(key, all_keys())}")
        for name, inner in value.items():
            _write(values, f"{key}.{name}", _read(inner), written)
        return
    parts = field.split(".")
    if parts[0] not in keys_of(place):
        raise NoPlace(f"unknown key{nearest(key, all_keys())}")
    here = _dictionary(values, place)
    for parent in parts[:-1]:
        here = here.setdefault(parent, {})
        if not isinstance(here, dict):
            raise NoPlace(f"{parent} is no section")
    here[parts[-1]] = value
    written.places.add((*place, *parts))


def _find(values: dict[str, Any], key: str) -> tuple[Place, str]:
    """The section that a key lies in, and the rest of the key: empty if the key is the section itself."""
    head, _, rest = key.partition(".")
    every = models(values)
    if head == "models":
        model, rest = _by_name(every, rest, "model")
        return _in_model([model], rest)
    if head == "pools" or head in _MODEL_SECTIONS:
        return _in_model(every, key)
    if head in sections():
        return (head,), rest
    owner = _owner(key)
    return _in_model(every, f"{owner}.{key}") if owner in _MODEL_SECTIONS else ((owner,), key)


def _in_model(candidates: list[Named], key: str) -> tuple[Place, str]:
    head, _, rest = key.partition(".")
    if head == "pools":
        pool, rest = _by_name([pool for model in candidates for pool in pools(model)], rest, "pool")
        return pool.place, rest
    if head not in _MODEL_SECTIONS:
        raise NoPlace(f"unknown key{nearest(head, [*_MODEL_SECTIONS, 'pools'])}")
    if len(candidates) > 1 and head != "pool":
        raise NoPlace(f"there are {len(candidates)} models, write {_choices('models', candidates, key)}")
    if head != "pool":
        return (*candidates[0].place, head), rest
    found = [pool for model in candidates for pool in pools(model)]
    if len(found) > 1:
        raise NoPlace(f"there are {len(found)} pools, write {_choices('pools', found, rest)}")
    return found[0].place, rest


def _owner(field: str) -> str:
    """The one section that has a field of this name. A pool's overrides of engine options are not meant."""
    owners = [name for name, kind in sections().items() if field in kind.model_fields and not _override(kind, field)]
    if len(owners) > 1:
        raise NoPlace(f"several sections have it, write {' or '.join(f'{owner}.{field}' for owner in owners)}")
    if not owners:
        raise NoPlace(f"unknown key{nearest(field, all_keys())}")
    return owners[0]


def _override(kind: type[BaseModel], field: str) -> bool:
    return kind is PoolConfig and field in OVERRIDING


def _by_name(named: Iterable[Named], rest: str, what: str) -> tuple[Named, str]:
    """The entry whose name `rest` begins with (names may have dots; the longest counts), and what follows."""
    known = list(named)
    found = [entry for entry in known if rest == entry.name or rest.startswith(f"{entry.name}.")]
    if not found:
        names = [entry.name for entry in known]
        close = nearest(rest.partition(".")[0], names)
        raise NoPlace(f"there is no such {what}{close} (known: {', '.join(names)})")
    entry = max(found, key=lambda one: len(one.name))
    return entry, rest[len(entry.name) + 1 :]


def _choices(kind: str, named: list[Named], rest: str) -> str:
    return " or ".join(f"{kind}.{entry.name}.{rest}" for entry in named)


def _dictionary(values: dict[str, Any], place: Place) -> dict[str, Any]:
    """The dictionary at a place; put there if there is none."""
    here: Any = values
    for part in place:
        if isinstance(part, int):
            here = here[part]
            continue
        if not isinstance(here.get(part), dict | list):
            here[part] = {}
        here = here[part]
    found: dict[str, Any] = here
    return found
