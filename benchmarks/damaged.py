"""Damaged copies of a checkpoint: everything that is read before the weights is in order, and the weights are not.

    python -m benchmarks.damaged corrupt /tmp/corrupt
    python -m benchmarks.damaged shuffled /tmp/shuffled --seed 1

`corrupt`   the header gives one matrix the wrong way round: as many bytes, so that header and file agree and facts can
            be read, but the engine that loads it refuses
`shuffled`  the values of every tensor in another order, drawn from a seed: it loads, and knows nothing any more
"""

import argparse
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy

from deployments.config import DEMO_DRAFT
from deployments.pair import source_of

WEIGHTS = "model.safetensors"
PREFIX_BYTES = 8
BYTES_OF = {"BF16": 2, "F16": 2, "F32": 4}


def corrupt(source: Path, folder: Path, seed: int = 0) -> Path:
    """A copy in `folder` (new) of which a start fails; `seed` chooses the matrix."""

    def damage(header: dict[str, Any], data: bytearray) -> None:
        matrices = sorted(name for name, tensor in _tensors(header).items() if len(set(tensor["shape"])) > 1)
        header[Random(seed).choice(matrices)]["shape"].reverse()

    return _damaged(source, folder, damage)


def shuffled(source: Path, folder: Path, seed: int = 0) -> Path:
    """A copy in `folder` (new) that starts and whose guesses are worth nothing."""

    def damage(header: dict[str, Any], data: bytearray) -> None:
        generator = numpy.random.default_rng(seed)
        for _, tensor in sorted(_tensors(header).items()):
            begin, end = tensor["data_offsets"]
            size = BYTES_OF[tensor["dtype"]]
            values = numpy.frombuffer(data, f"u{size}", (end - begin) // size, begin)
            values[:] = generator.permutation(values)

    return _damaged(source, folder, damage)


DAMAGES: dict[str, Callable[[Path, Path, int], Path]] = {"corrupt": corrupt, "shuffled": shuffled}


def _tensors(header: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {name: tensor for name, tensor in header.items() if name != "__metadata__"}


def _damaged(source: Path, folder: Path, damage: Callable[[dict[str, Any], bytearray], None]) -> Path:
    shutil.copytree(source, folder)
    file = folder / WEIGHTS
    raw = file.read_bytes()
    start = PREFIX_BYTES + int.from_bytes(raw[:PREFIX_BYTES], "little")
    header, data = json.loads(raw[PREFIX_BYTES:start]), bytearray(raw[start:])
    damage(header, data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    file.write_bytes(len(text).to_bytes(PREFIX_BYTES, "little") + text + data)
    return folder


def main() -> None:
    """Write one copy and say where it is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("damage", choices=DAMAGES)
    parser.add_argument("folder", type=Path, help="made here; must not exist")
    parser.add_argument("--source", default=DEMO_DRAFT, help="a folder, or the demo's drafter")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print(DAMAGES[options.damage](Path(source_of(options.source)), options.folder, options.seed))


if __name__ == "__main__":
    main()
