"""The CPU backend's rejection sampler: what is wrong with it, and that the patch mends it."""

from collections.abc import Iterator

import pytest
import torch
import vllm
from vllm.utils import cpu_triton_utils
from vllm.v1.sample import rejection_sampler

from hybrid_serve.engine.patches import cpu_sampling
from hybrid_serve.facts.capabilities import capabilities

pytestmark = [pytest.mark.contract, pytest.mark.engines]


@pytest.fixture
def patched() -> Iterator[None]:
    found = rejection_sampler.expand_batch_to_tokens  # patched already if a worker's module was imported
    cpu_sampling.install()
    assert cpu_sampling.installed() and not cpu_sampling.install()
    yield
    rejection_sampler.expand_batch_to_tokens = found


def test_the_flaw_is_there_as_long_as_the_capability_says_so() -> None:
    written = torch.full((5,), -1.0)
    cpu_triton_utils.expand_kernel[(2,)](
        written, torch.tensor([0.5, 2.0]), torch.tensor([2, 5], dtype=torch.int32), 0, 0, MAX_NUM_TOKENS=8
    )
    flawed = written.tolist() != [0.5, 0.5, 2.0, 2.0, 2.0]
    assert flawed == capabilities(vllm.__version__.split("+")[0]).cpu_expands_only_integers


@pytest.mark.usefixtures("patched")
@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.int64, torch.bool])
def test_values_are_spread_over_their_tokens(dtype: torch.dtype) -> None:
    values = torch.tensor([1, 0, 1]).to(dtype)
    spread = rejection_sampler.expand_batch_to_tokens(values, torch.tensor([2, 5, 6], dtype=torch.int32), 6)
    assert spread.dtype == dtype
    assert spread.tolist() == torch.tensor([1, 1, 0, 0, 0, 1]).to(dtype).tolist()


@pytest.mark.usefixtures("patched")
def test_greedy_requests_get_the_replacement_temperature() -> None:
    spread = rejection_sampler.expand_batch_to_tokens(
        torch.tensor([0.0, 0.7]), torch.tensor([1, 3], dtype=torch.int32), 3, replace_from=0, replace_to=1
    )
    assert spread.tolist() == pytest.approx([1.0, 0.7, 0.7])
