"""From a YAML file and `key=value` overrides to an AppConfig, or to one error that lists every mistake."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from deployments.config import AppConfig
from deployments.config_places import LISTS, sections
from deployments.errors import AppError
from deployments.mistakes import sentences
from deployments.overrides import apply_overrides
from deployments.sources import resolve_sources

DEMO_CONFIG = Path(__file__).parent.parent / "configs" / "demo.yaml"


def load_config(path: str | Path | None, overrides: Mapping[str, Any] | None = None) -> AppConfig:
    """The configuration in a file (default: the demo's) with overrides applied.

    How overrides are written: `deployments.overrides.apply_overrides`.

    Raises:
        AppError: every mistake in file and overrides, one a line.
    """
    file = Path(path or DEMO_CONFIG).expanduser()
    values = _read(file)
    written = apply_overrides(values, overrides or {})
    mistakes = [*written.mistakes, *resolve_sources(values, file.resolve().parent, written.places)]
    config = None
    try:
        config = AppConfig.model_validate(values)
    except ValidationError as error:
        mistakes += sentences(error, values)
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
        expected = ", ".join([*sections(), *LISTS])
        raise AppError(f"{file} holds {type(values).__name__}, expected the sections {expected}")
    return values
