"""Where the models of a configuration lie: absolute folders, hub ids, or the shipped demo pair."""

import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from deployments.config import DEMO_DRAFT, DEMO_TARGET, MTP
from deployments.config_places import Place, models, words

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def resolve_sources(values: dict[str, Any], folder: Path, overridden: Collection[Place] = ()) -> Iterator[str]:
    """Makes folders in `values` absolute; yields a sentence for each source that is neither folder nor hub id.

    Relative folders are taken from the configuration's folder, those of `overridden` places from the current one.
    """
    for served in models(values):
        model = served.values.get("model")
        if isinstance(model, dict):
            yield from _resolve_model(model, (*served.place, "model"), values, folder, overridden)


def _resolve_model(
    model: dict[str, Any], place: Place, values: dict[str, Any], folder: Path, overridden: Collection[Place]
) -> Iterator[str]:
    where = words(place, values)
    for field in ("target", "drafter"):
        source = model.get(field)
        if not isinstance(source, str) or (field == "drafter" and source == MTP):
            continue
        here = any(place[: len(written)] == written for written in overridden) or (*place, field) in overridden
        try:
            model[field] = _resolve(source, Path.cwd() if here else folder)
        except ValueError as error:
            yield f"{where}.{field}: {error}"
            continue
        if model.get("name") is None and field == "target":
            model["name"] = "demo" if source == DEMO_TARGET else source
        if (revision := model.get(f"{field}_revision")) and Path(model[field]).is_absolute():
            yield f"{where}.{field}_revision: {revision!r} is for hub ids, but {source} is a folder; remove it"


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
