"""Building blocks that the target and the drafter share, and the chunked gated delta rule."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class RMSNorm(nn.Module):
    """Root-mean-square norm in float32. `centred` stores the weight minus one, as Qwen3-Next does."""

    def __init__(self, size: int, eps: float, *, centred: bool = False) -> None:
        super().__init__()
        self.eps = eps
        self.offset = 1.0 if centred else 0.0
        self.weight = nn.Parameter(torch.full((size,), 1.0 - self.offset))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return (normed * (self.weight.float() + self.offset)).to(x.dtype)


def linear(inputs: int, outputs: int) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=False)


def rope_angles(positions: Tensor, rotary_dim: int, theta: float) -> tuple[Tensor, Tensor]:
    """Cosines and sines, each [..., rotary_dim / 2], for integer positions [...]."""
    steps = torch.arange(0, rotary_dim, 2, device=positions.device, dtype=torch.float32)
    angles = positions.float().unsqueeze(-1) * theta ** (-steps / rotary_dim)
    return angles.cos(), angles.sin()


def apply_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the first dimensions of x [B, T, heads, D] (NeoX halves); cos and sin are [B or 1, T, rotary_dim / 2]."""
    half = cos.shape[-1]
    cos, sin = cos.unsqueeze(2), sin.unsqueeze(2)
    first, second, rest = x[..., :half].float(), x[..., half : 2 * half].float(), x[..., 2 * half :]
    turned = torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
    return torch.cat([turned.to(x.dtype), rest], dim=-1)


def unit(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)


def invert_unit_lower(strict: Tensor) -> Tensor:
    """Inverse of (I + strict), for strictly lower triangular matrices [..., C, C], C a power of two.

    Inverts diagonal blocks of 1, 2, 4, ... rows: two neighbouring inverted blocks P and Q with L between them join
    into [[P, 0], [-Q L P, Q]]. As stable as forward substitution, but made of log2(C) batched products.
    """
    size = strict.shape[-1]
    row = torch.arange(size, device=strict.device)
    inverse = torch.eye(size, device=strict.device, dtype=strict.dtype).expand_as(strict)
    width = 1
    while width < size:
        block = row // width
        between = (block[:, None] == block[None, :] + 1) & (block[:, None] % 2 == 1)
        inverse = inverse - inverse @ (strict * between) @ inverse
        width *= 2
    return inverse


def gated_delta_rule(query: Tensor, key: Tensor, value: Tensor, decay: Tensor, beta: Tensor, chunk: int = 64) -> Tensor:
    """Gated DeltaNet over whole sequences that start from an empty state.

    S_t = exp(decay_t) S_{t-1} (I - beta_t k_t k_t^T) + beta_t v_t k_t^T and o_t = S_t q_t, with k and q of unit
    length and q scaled by 1 / sqrt(D) (Yang et al., arXiv 2412.06464), computed chunk by chunk in float32.
    Shapes: query, key [B, T, Hk, D]; value [B, T, Hv, Dv]; decay (log, <= 0), beta [B, T, Hv]; T a multiple of
    `chunk`. Returns [B, T, Hv, Dv] in float32.
    """
    batch, length, value_heads, _ = value.shape
    share = value_heads // key.shape[2]

    def chunked(x: Tensor) -> Tensor:  # [B, T, H, D] -> [B * H, N, C, D]
        return x.transpose(1, 2).reshape(batch * value_heads, length // chunk, chunk, -1)

    q = chunked((unit(query.float()) * query.shape[-1] ** -0.5).repeat_interleave(share, dim=2))
    k = chunked(unit(key.float()).repeat_interleave(share, dim=2))
    b = chunked(beta.float().unsqueeze(-1))
    total = chunked(decay.float().unsqueeze(-1)).squeeze(-1).cumsum(-1)  # [B * H, N, C]

    lower = torch.ones(chunk, chunk, dtype=torch.bool, device=value.device).tril()
    pairwise = (total.unsqueeze(-1) - total.unsqueeze(-2)).masked_fill(~lower, -torch.inf).exp()
    solved = invert_unit_lower((((k * b) @ k.transpose(-1, -2)) * pairwise).tril(-1))
    fresh = solved @ (chunked(value.float()) * b)  # what each token writes if the state before the chunk is empty
    erased = solved @ (k * b * total.exp().unsqueeze(-1))  # and what it removes from that state
    within = (q @ k.transpose(-1, -2)) * pairwise
    q = q * total.exp().unsqueeze(-1)
    k = (k * (total[..., -1:] - total).exp().unsqueeze(-1)).transpose(-1, -2)
    carry = total[..., -1:, None].exp()

    state = value.new_zeros(batch * value_heads, key.shape[-1], value.shape[-1], dtype=torch.float32)
    outputs = []
    # unbind, since the gradient of indexing chunk by chunk would be one full-size tensor for each chunk
    for parts in zip(*(part.unbind(1) for part in (q, k, fresh, erased, within, carry)), strict=True):
        q_n, k_n, fresh_n, erased_n, within_n, carry_n = parts
        written = torch.baddbmm(fresh_n, erased_n, state, alpha=-1)
        outputs.append(torch.baddbmm(torch.bmm(q_n, state), within_n, written))
        state = torch.baddbmm(state * carry_n, k_n, written)
    return torch.cat(outputs, dim=1).unflatten(0, (batch, value_heads)).transpose(1, 2)


def swiglu(x: Tensor, gate: nn.Linear, up: nn.Linear, down: nn.Linear) -> Tensor:
    return down(F.silu(gate(x)) * up(x))
