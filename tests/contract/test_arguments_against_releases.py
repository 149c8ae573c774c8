"""Our engine arguments and our plugin in each vLLM release, up to the configuration that its engine core would get."""

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from hybrid_serve.engine.additional import WORKER_EXTENSION
from hybrid_serve.facts.capabilities import CAPABILITIES, capabilities
from tests.contract.wheels import ROOT, cache_of, tree

pytestmark = [pytest.mark.contract, pytest.mark.timeout(400)]

every_release = pytest.mark.parametrize("release", sorted(CAPABILITIES))

ABSENT = """
import sys
from importlib.util import find_spec
from unittest.mock import MagicMock

for name in ("gguf", "gguf.constants", "gguf.quants"):  # 0.20.1 imports them with its configuration
    if "gguf" in sys.modules or find_spec("gguf") is None:
        sys.modules[name] = MagicMock()
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    (folder / "sitecustomize.py").write_text(ABSENT)
    return folder


@cache
def started(release: str, site: Path, drafter: Path | None = None) -> tuple[dict[str, Any], str]:
    """The configuration, and what was logged on the way to it."""
    question = {"sliding": drafter is not None, "folder": str(drafter)}
    run = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "contract" / "started_config.py"), json.dumps(question)],
        env=os.environ
        | cache_of(release)
        | {
            "PYTHONPATH": os.pathsep.join(map(str, (site, tree(release), ROOT))),
            "VLLM_TARGET_DEVICE": "cpu",
            "VLLM_PLUGINS": "hybrid_serve",
            "VLLM_LOGGING_LEVEL": "INFO",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )
    last = next((line for line in reversed(run.stdout.splitlines()) if line.startswith("{")), None)
    assert last is not None, run.stdout[-6000:]
    return json.loads(last), run.stdout


@every_release
def test_the_plan_travels_to_the_engine_core_with_our_extension(release: str, site: Path) -> None:
    made, _ = started(release, site)
    assert made["vllm"].split("+")[0] == release
    assert made["patched"]
    assert made["plan"] == made["planned"]
    assert made["extension"] == WORKER_EXTENSION
    assert made["publishes_capacity"] == capabilities(release).publishes_capacity


@every_release
def test_the_settings_are_read_back_as_they_were_given(release: str, site: Path) -> None:
    made, _ = started(release, site)
    has_option = capabilities(release).draft_kv_dtype
    assert made["settings"] == made["wanted"] | {"draft_kv_dtype": "bf16" if has_option else "auto"}
    assert made["gdn_prefill"] == "triton"


@every_release
def test_a_drafter_is_fed_one_layer_later_only_where_the_release_is_early(release: str, site: Path) -> None:
    made, log = started(release, site)
    early = capabilities(release).dflash_reads_one_layer_early
    assert made["fed_after"] == ([2, 5, 7] if early else None)
    assert ("one layer early; corrected to [2, 5, 7]" in log) == early
    assert made["ids_are_hashed"]


def test_sliding_layers_that_will_run_as_full_are_warned_of_at_the_start(site: Path, tmp_path: Path) -> None:
    _, log = started("0.20.1", site, tmp_path)
    (warning,) = [line for line in log.splitlines() if "with full attention instead of a sliding window" in line]
    assert "WARNING" in warning
    assert "vLLM 0.20.1 runs 1 of the drafter's 2 layers" in warning and "512 tokens" in warning
