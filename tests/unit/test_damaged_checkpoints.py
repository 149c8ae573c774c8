"""Damaged copies of the demo's drafter: what can be told of them before they are loaded, and what can't."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from benchmarks.damaged import DAMAGES
from hybrid_serve.facts.checkpoint import read_drafter, read_target
from hybrid_serve.facts.pairing import check_pair

DEMO = Path(__file__).parents[2] / "hybrid_serve" / "demo"


@pytest.mark.parametrize("damage", DAMAGES)
def test_facts_of_a_damaged_copy_are_the_originals_but_for_the_weights_fingerprint(damage: str, tmp_path: Path) -> None:
    original = read_drafter(str(DEMO / "draft"))
    copy = read_drafter(str(DAMAGES[damage](DEMO / "draft", tmp_path / "copy", 0)))
    assert copy.fingerprint.geometry == original.fingerprint.geometry
    assert copy.fingerprint.weights != original.fingerprint.weights
    assert (copy.layers, copy.weights_bytes) == (original.layers, original.weights_bytes)
    assert check_pair(read_target(str(DEMO / "target")), copy, 7) == ()


@pytest.mark.parametrize("damage", DAMAGES)
def test_the_same_seed_gives_the_same_copy_and_another_seed_another(damage: str, tmp_path: Path) -> None:
    copies = [
        DAMAGES[damage](DEMO / "draft", tmp_path / f"copy-{number}", seed) for number, seed in enumerate((1, 1, 2))
    ]
    one, again, other = (read_drafter(str(copy)).fingerprint.weights for copy in copies)
    assert one == again != other


def test_a_corrupt_copy_has_one_matrix_the_wrong_way_round(tmp_path: Path) -> None:
    original = load_file(DEMO / "draft" / "model.safetensors")
    copy = load_file(DAMAGES["corrupt"](DEMO / "draft", tmp_path / "copy", 0) / "model.safetensors")
    (turned,) = [name for name in original if original[name].shape != copy[name].shape]
    assert copy[turned].shape == original[turned].shape[::-1]


def test_a_shuffled_copy_has_the_same_values_in_another_order(tmp_path: Path) -> None:
    original = load_file(DEMO / "draft" / "model.safetensors")
    copy = load_file(DAMAGES["shuffled"](DEMO / "draft", tmp_path / "copy", 0) / "model.safetensors")
    for name, tensor in original.items():
        before, after = tensor.view(torch.int16).flatten(), copy[name].view(torch.int16).flatten()
        assert torch.equal(before.sort().values, after.sort().values), name
        assert len(before.unique()) == 1 or not torch.equal(before, after), name
