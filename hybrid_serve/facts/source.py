"""Where a checkpoint lies: a folder, or a hub id."""

import re
from dataclasses import dataclass
from pathlib import Path

from hybrid_serve.facts.config import Config
from hybrid_serve.facts.errors import fail
from hybrid_serve.facts.weights import Weights, folder_weights

CONFIG_NAME = "config.json"
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9_][\w.-]*")


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A config and its weights' outline. `revision` is the hub commit, None for a folder."""

    source: str
    revision: str | None
    config: Config
    weights: Weights


def local_folder(source: str, revision: str | None) -> Path | None:
    """The folder that `source` names, or None if it is a hub id.

    Raises:
        FactsError: neither; or a folder with a `revision`.
    """
    path = Path(source).expanduser()
    if path.is_dir():
        if revision is not None:
            raise fail(f"{source} is a folder, which has no revision {revision!r}", "Leave the revision out")
        return path
    if path.exists():
        raise fail(f"{source} is a file", f"Give the folder that holds {CONFIG_NAME}")
    if HUB_ID.fullmatch(source):
        return None
    raise fail(
        f"{source} does not exist", f"Give a folder that holds {CONFIG_NAME}, or a hub id such as Qwen/Qwen3.5-9B"
    )


def open_checkpoint(source: str, revision: str | None = None) -> Checkpoint:
    """Reads config.json and the weights' outline, never the weights.

    Raises:
        FactsError: there is nothing to read there, or what is there is broken.
    """
    folder = local_folder(source, revision)
    if folder is not None:
        return Checkpoint(source=source, revision=None, config=read_config(folder), weights=folder_weights(folder))
    from hybrid_serve.facts.hub import open_hub_checkpoint

    return open_hub_checkpoint(source, revision)


def read_config(folder: Path) -> Config:
    path = folder / CONFIG_NAME
    if not path.is_file():
        raise fail(f"{folder} has no {CONFIG_NAME}", f"Give the folder that holds the model's {CONFIG_NAME}")
    return Config.parse(path.read_bytes(), str(path))
