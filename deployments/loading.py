"""From a YAML file and `key=value` overrides to an AppConfig, or to one error that lists every mistake."""

import difflib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from deployments.config import DEMO_DRAFT, DEMO_TARGET, MTP, AppConfig
from deployments.errors import AppError

DEMO_CONFIG = Path(__file__).parent.parent / "configs" / "demo.yaml"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def load_config(path: str | Path | None, overrides: Mapping[str, Any] | None = None) -> AppConfig:
    """The configuration in a file (default: the demo's) with overrides applied.

    An override's key is a section (`engine`), a dotted name (`engine.max_model_len`) or a field's own name where
    only one section has it (`max_model_len`). Text values are read as YAML.

    Raises:
        AppError: every mistake in file and overrides, one a line.
    """
    file = Path(path or DEMO_CONFIG).expanduser()
    values = _read(file)
    mistakes = [*_merge(values, overrides or {})]
    mistakes += _resolve_sources(values, file.resolve().parent, overrides or {})
    config = None
    try:
        config = AppConfig.model_validate(values)
    except ValidationError as error:
        mistakes += _mistakes(error)
    if mistakes or config is None:
        count = "1 mistake" if len(mistakes) == 1 else f"{len(mistakes)} mistakes"
        raise AppError(f"{file}: {count} in the configuration\n" + "\n".join(f"  {m}" for m in mistakes))
    return config


def _read(file: Path) -> dict[str, Any]:
    try:
        values = yaml.safe_load(file.read_text())
    except OSError as error:
        raise AppError(f"can't read the configuration {file}: {error.strerror or error}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise AppError(f"{file} is not YAML: {error}") from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise AppError(f"{file} holds {type(values).__name__}, expected the sections {', '.join(_sections())}")
    return values


def _merge(values: dict[str, Any], overrides: Mapping[str, Any]) -> Iterator[str]:
    """Writes the overrides into `values`; yields a sentence for each that has no place."""
    for key, value in overrides.items():
        if isinstance(value, str):
            value = yaml.safe_load(value)
        if isinstance(value, Mapping) and key in _sections():
            yield from _merge(values, {f"{key}.{name}": inner for name, inner in value.items()})
            continue
        section, dot, field = key.partition(".")
        if not dot:
            owners = [name for name, model in _sections().items() if key in model.model_fields]
            if len(owners) > 1:
                yield f"{key}: several sections have it, write {' or '.join(f'{owner}.{key}' for owner in owners)}"
                continue
            section, field = (owners[0], key) if owners else ("", key)
        model = _sections().get(section)
        if model is None or field.partition(".")[0] not in model.model_fields:
            yield f"{key}: unknown key{_nearest(key, _all_keys())}"
            continue
        place = values.get(section)
        if not isinstance(place, dict):
            place = values[section] = {}
        *parents, leaf = field.split(".")
        for parent in parents:
            place = place.setdefault(parent, {})
        place[leaf] = value


def _mistakes(error: ValidationError) -> Iterator[str]:
    for detail in error.errors(include_url=False):
        where = ".".join(str(part) for part in detail["loc"])
        if detail["type"] == "extra_forbidden":
            yield f"{where}: unknown key{_hint(detail['loc'])}"
            continue
        message = detail["msg"].removeprefix("Value error, ")
        message = message[:1].lower() + message[1:]
        given = detail["input"]
        short = isinstance(given, str | int | float) and repr(given) not in message
        shown = f" (given: {given!r})" if short else ""
        yield f"{where or 'configuration'}: {message}{shown}"


def _hint(loc: tuple[int | str, ...]) -> str:
    *parents, key = (str(part) for part in loc)
    if not parents:
        return _nearest(key, [*_sections(), *_all_keys()])
    model: type[BaseModel] | None = _sections().get(parents[0])
    elsewhere = [known for known in _all_keys() if known.endswith(f".{key}")]
    if elsewhere:
        return f"; did you mean {' or '.join(elsewhere)}?"
    known = list(model.model_fields) if model and len(parents) == 1 else ["tokens", "weight"]
    return _nearest(key, known) + f" (known here: {', '.join(known)})"


def _nearest(key: str, known: list[str]) -> str:
    """`; did you mean a or b?`, also where only the last part of a dotted name is like the key."""
    by_leaf = {name.rpartition(".")[2]: name for name in known}
    close = difflib.get_close_matches(key, known, n=3, cutoff=0.6)
    close += [by_leaf[leaf] for leaf in difflib.get_close_matches(key.rpartition(".")[2], by_leaf, n=3, cutoff=0.6)]
    names = list(dict.fromkeys(close))[:3]
    return f"; did you mean {' or '.join(names)}?" if names else ""


def _sections() -> dict[str, type[BaseModel]]:
    annotations = {name: field.annotation for name, field in AppConfig.model_fields.items()}
    return {name: kind for name, kind in annotations.items() if isinstance(kind, type) and issubclass(kind, BaseModel)}


def _all_keys() -> list[str]:
    return [f"{section}.{field}" for section, model in _sections().items() for field in model.model_fields]


def _resolve_sources(values: dict[str, Any], folder: Path, overrides: Mapping[str, Any]) -> Iterator[str]:
    """Makes folders in `values` absolute; yields a sentence for each source that is neither folder nor hub id.

    Relative folders are taken from the configuration's folder, those in overrides from the current one.
    """
    model = values.get("model")
    if not isinstance(model, dict):
        return
    for field in ("target", "drafter"):
        source = model.get(field)
        if not isinstance(source, str) or (field == "drafter" and source == MTP):
            continue
        overridden = any(key in overrides for key in (field, f"model.{field}", "model"))
        try:
            model[field] = _resolve(source, Path.cwd() if overridden else folder)
        except ValueError as error:
            yield f"model.{field}: {error}"
            continue
        if model.get("name") is None and field == "target":
            model["name"] = "demo" if source == DEMO_TARGET else source
        if (revision := model.get(f"{field}_revision")) and Path(model[field]).is_absolute():
            yield f"model.{field}_revision: {revision!r} is for hub ids, but {source} is a folder; remove it"


def _resolve(source: str, folder: Path) -> str:
    """An absolute folder, `demo:target` or `demo:draft`, or the hub id as it is."""
    if source in (DEMO_TARGET, DEMO_DRAFT):
        return source
    path = (folder / Path(source).expanduser()).resolve()
    if path.is_dir():
        return str(path)
    if path.exists():
        raise ValueError(f"{path} is a file; give the folder that holds config.json")
    if _HUB_ID.fullmatch(source):
        return source
    raise ValueError(f"there is no folder {path} (relative paths are taken from {folder})")
