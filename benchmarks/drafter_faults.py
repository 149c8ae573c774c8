"""What it costs a trained DFlash drafter to be run as vLLM 0.20.1 runs it: acceptance, on the installed vLLM.

    python -m benchmarks.drafter_faults --output benchmarks/results/faults-cpu.json

0.20.1 takes the hidden states one layer early, and runs sliding layers as full ones. Both can be asked for on any
release by the drafter's configuration: `eagle_aux_hidden_state_layer_ids` without the one that vLLM counts more, and
`layer_types` that are all full. The prompts for the second are longer than the window (256 tokens). A drafter with
sliding layers runs as trained on CUDA only.
"""

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import compare_plans
from benchmarks.in_turn import ROOT, Results, in_own_process, in_rows, kept
from hybrid_serve.demo.geometry import DRAFT_DIR

SLIDING_DRAFTER = ROOT / "tests/data/sliding_drafter"


def one_layer_early(config: dict[str, Any]) -> None:
    """As releases before 0.24 do."""
    config["eagle_aux_hidden_state_layer_ids"] = config["dflash_config"]["target_layer_ids"]


def sliding_as_full(config: dict[str, Any]) -> None:
    """As releases before 0.25 do."""
    config["layer_types"] = ["full_attention"] * config["num_hidden_layers"]
    config |= {"use_sliding_window": False, "sliding_window": None}


def unchanged(config: dict[str, Any]) -> None:
    """As it was trained."""


Case = tuple[Path, Callable[[dict[str, Any]], None], list[str]]
CASES: dict[str, Case] = {
    "demo drafter": (DRAFT_DIR, unchanged, []),
    "demo drafter, hidden states one layer early": (DRAFT_DIR, one_layer_early, []),
    "sliding drafter, sliding layers run as full": (SLIDING_DRAFTER, sliding_as_full, ["--long"]),
}
ON_CUDA: dict[str, Case] = {"sliding drafter": (SLIDING_DRAFTER, unchanged, ["--long"])}


def drafter_as(source: Path, change: Callable[[dict[str, Any]], None], folder: Path) -> Path:
    """A copy of the drafter in `folder` with a changed configuration."""
    shutil.copytree(source, folder)
    path = folder / "config.json"
    config = json.loads(path.read_text())
    change(config)
    path.write_text(json.dumps(config))
    return folder


def table(results: Results) -> str:
    """One row a case."""
    rows = ["| case | prompts | mean acceptance length | accepted at each position |", "|---|---|---|---|"]
    for name, result in results:
        if "error" in result:
            rows.append(f"| {name} | {result['error'][-200:]!r} |")
            continue
        positions = " ".join(f"{share:.2f}" for share in result["acceptance_per_position"])
        rows.append(f"| {name} | {len(result['outputs'])} | {result['mean_acceptance_length']} | {positions} |")
    return "\n".join(rows)


def main() -> int:
    """Exit status 1 if an engine did not start."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cpu")
    parser.add_argument("--prompts", type=int, default=40)
    parser.add_argument("--output", type=Path)
    asked = parser.parse_args()
    results: Results = []
    with tempfile.TemporaryDirectory() as folder:
        for name, (source, change, more) in (CASES | (ON_CUDA if asked.device == "cuda" else {})).items():
            drafter = drafter_as(source, change, Path(folder) / str(len(results)))
            arguments = [
                f"--device={asked.device}", f"--prompts={asked.prompts}", f"--drafter={drafter}", *more,
                "--kv-memory=512MiB", '--engine-args={"enforce_eager": true}',
            ]  # fmt: skip
            options = compare_plans.parser().parse_args(arguments)
            results.append((name, in_own_process("benchmarks.compare_plans", "best", options, arguments)))
    print(table(results))
    if asked.output:
        kept("benchmarks.drafter_faults", asked.output, sys.argv[1:], in_rows(results, table(results)))
    return int(any("error" in result for _, result in results))


if __name__ == "__main__":
    sys.exit(main())
