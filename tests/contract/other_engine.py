"""A second vLLM release that really runs on this machine: an environment on top of the one that runs the tests.

It sees the packages of that environment and shadows vLLM and whatever that release needs in another version; torch is
the same build. It lies in the cache folder, is made once (half a minute, 0.7 GB), and again when the environment below
it changes.
"""

import hashlib
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import venv
from functools import cache
from importlib.metadata import distributions
from pathlib import Path

from tests.contract.wheels import PACKAGES, cache_folder

REQUIREMENTS = """
from importlib.metadata import requires
print("\\n".join(requires("{package}")))
"""


class EngineEnvironmentError(RuntimeError):
    """The environment could not be made; the message has pip's answer."""


@cache
def python_of(release: str) -> str:
    """The interpreter of an environment with this release's engine.

    Raises:
        EngineEnvironmentError: pip could not install it.
    """
    parent = cache_folder().parent / "vllm-engines"
    ready = parent / f"{release}-{_environment_below()}"
    if not ready.exists():
        parent.mkdir(parents=True, exist_ok=True)
        for old in parent.glob(f"{release}-*"):
            shutil.rmtree(old)
        _make(ready, release)
    _see_below(ready)
    return str(ready / "bin" / "python")


def _environment_below() -> str:
    """12 hex digits over the interpreter's version and the packages below."""
    # Of its own folder alone: a checkout may have an egg-info beside it, and a process with Ray what Ray brings along.
    installed = distributions(path=[sysconfig.get_paths()["purelib"]])
    found = sorted(f"{one.metadata['Name']}=={one.version}" for one in installed)
    return hashlib.sha256("\n".join([sys.version, *found]).encode()).hexdigest()[:12]


def _see_below(environment: Path) -> None:
    """The packages of the running environment after the new one's own; its place may have changed since."""
    (site,) = environment.glob("lib/python*/site-packages")
    below = sysconfig.get_paths()["purelib"]
    (site / "below.pth").write_text(f"import site; site.addsitedir({below!r})\n")


def _make(ready: Path, release: str) -> None:
    """In place all at once, so that half an environment is never taken for a whole one."""
    package = PACKAGES[release]
    with tempfile.TemporaryDirectory(dir=ready.parent, ignore_cleanup_errors=True) as scratch:
        made = Path(scratch) / "environment"
        venv.create(made, with_pip=False)
        _see_below(made)
        python = str(made / "bin" / "python")
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        _run([*pip, "--no-deps", f"{package}=={release}"])
        needed = _run([python, "-c", REQUIREMENTS.format(package=package)]).splitlines()
        # torch is there; its companions for images and sound come for a CUDA torch, and break what imports them.
        wanted = [one for one in needed if not re.match("torch", one) and "extra ==" not in one]
        _run([*pip, *wanted])
        made.rename(ready)


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise EngineEnvironmentError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-3000:]}")
    return done.stdout
