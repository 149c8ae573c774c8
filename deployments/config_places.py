"""Places in a configuration: which section stands where, and what a user calls it.

A place is a tuple as in pydantic's errors, `("pools", 1, "kv_memory")`; a user writes `pools.h200.kv_memory`.
"""

import inspect
from collections.abc import Iterator
from typing import Any, NamedTuple, get_args

from pydantic import BaseModel

from deployments.config import AppConfig, EngineOptions, PoolConfig

Place = tuple[str | int, ...]

LISTS = ("pools", "models")
"""Sections of which there may be several; each has a name."""


class Named(NamedTuple):
    """A pool, or a model with its pools, as it stands in the file."""

    place: Place
    name: str
    values: dict[str, Any]


def sections() -> dict[str, type[BaseModel]]:
    """The sections that an app has once, by name."""
    kinds = {name: _kind(field.annotation) for name, field in AppConfig.model_fields.items() if name not in LISTS}
    return {name: kind for name, kind in kinds.items() if kind is not None}


def all_keys() -> list[str]:
    """`engine.max_model_len`, ...: every field of the sections that an app has once."""
    return [f"{section}.{field}" for section, kind in sections().items() for field in kind.model_fields]


def kind_at(place: Place) -> type[BaseModel] | None:
    """The section that a place is; None where there is none."""
    kind: type[BaseModel] | None = AppConfig
    for part in place:
        if isinstance(part, int):
            continue
        field = kind.model_fields.get(part) if kind else None
        if field is None:
            return None
        kind = EngineOptions if (kind, part) == (PoolConfig, "engine") else _kind(field.annotation)
    return kind


def models(values: dict[str, Any]) -> list[Named]:
    """The models of a file; without `models` the file itself is one."""
    listed = values.get("models")
    if not isinstance(listed, list) or not listed:
        return [Named((), _model_name(values), values)]
    return [
        Named(("models", index), _model_name(entry), entry)
        for index, entry in enumerate(listed)
        if isinstance(entry, dict)
    ]


def pools(model: Named) -> list[Named]:
    """The pools of one model; where the file has none, the one that it has by default, which is then written there."""
    listed = model.values.get("pools")
    if isinstance(listed, list) and listed:
        return [
            Named((*model.place, "pools", index), _pool_name(entry), entry)
            for index, entry in enumerate(listed)
            if isinstance(entry, dict)
        ]
    if not isinstance(model.values.get("pool"), dict):
        model.values["pool"] = {}
    return [Named((*model.place, "pool"), _pool_name(model.values["pool"]), model.values["pool"])]


def words(place: Place, values: dict[str, Any]) -> str:
    """What a user calls a place: pools and models by their names, where they have one."""
    said: list[str] = []
    here: Any = values
    for before, part in zip((None, *place), place, strict=False):
        try:
            here = here[part]
        except (KeyError, IndexError, TypeError):
            here = None
        name = str(part)
        if isinstance(part, int) and isinstance(here, dict) and before in LISTS:
            name = here.get("name", name) if before == "pools" else _model_name(here)
        said.append(str(name))
    return ".".join(said)


def keys_of(place: Place) -> Iterator[str]:
    """Names of the fields that a place takes."""
    kind = kind_at(place)
    yield from kind.model_fields if kind else ()


def _kind(annotation: Any) -> type[BaseModel] | None:
    """X of `X`, `X | None` and `tuple[X, ...]`, if it is a section."""
    kinds = (kind for kind in (annotation, *get_args(annotation)) if inspect.isclass(kind))
    return next((kind for kind in kinds if issubclass(kind, BaseModel)), None)


def _model_name(entry: dict[str, Any]) -> str:
    model = entry.get("model")
    given = model if isinstance(model, dict) else {}
    return str(given.get("name") or given.get("target") or "demo")


def _pool_name(entry: dict[str, Any]) -> str:
    return str(entry.get("name", PoolConfig.model_fields["name"].default))
