"""Fixtures that several kinds of tests share."""

import json
from pathlib import Path

import pytest

from hybrid_serve.demo.geometry import DraftGeometry, TargetGeometry


@pytest.fixture(scope="session")
def pair_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `target/config.json` and `draft/config.json` of the demo pair's geometry, without weights."""
    folder = tmp_path_factory.mktemp("pair")
    target = TargetGeometry()
    for name, config in (("target", target.config()), ("draft", DraftGeometry().config(target))):
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps(config))
    return folder
