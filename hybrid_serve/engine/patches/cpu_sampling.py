"""Patch for the CPU backend of vLLM 0.29.0: sampling with a temperature while a drafter drafts.

Its `expand_kernel` copies what is not int64 before it writes, so the temperatures that the rejection sampler spreads
over the drafted tokens are uninitialised memory: with a temperature other than 0 the answers are noise. Greedy requests
do not use it, nor does CUDA.

Remove when `vllm.utils.cpu_triton_utils.expand_kernel` writes floating-point outputs.
"""

from typing import Any

_MARK = "__hybrid_serve__"


def install() -> bool:
    """Patch this process's rejection sampler. Idempotent; False if it was in place already."""
    import torch
    from vllm.v1.sample import rejection_sampler

    if installed():
        return False

    def expand_batch_to_tokens(
        x: Any, cu_num_tokens: Any, num_tokens: int, replace_from: int = 0, replace_to: int = 0
    ) -> Any:
        """[a, b] with cumulated counts [2, 5] gives [a, a, b, b, b]; `replace_from` becomes `replace_to`."""
        counts = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1))
        expanded = x.repeat_interleave(counts, output_size=num_tokens)
        return expanded.masked_fill(expanded == replace_from, replace_to)

    setattr(expand_batch_to_tokens, _MARK, True)
    rejection_sampler.expand_batch_to_tokens = expand_batch_to_tokens
    return True


def installed() -> bool:
    """Whether this process is patched."""
    from vllm.v1.sample import rejection_sampler

    return hasattr(rejection_sampler.expand_batch_to_tokens, _MARK)
