"""The target in plain PyTorch, for training: Qwen3-Next's layers, named and laid out as its checkpoints are.

Only whole sequences are computed, from an empty state: serving is vLLM's business.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hybrid_serve.demo.geometry import TargetGeometry
from hybrid_serve.demo.layers import RMSNorm, apply_rope, gated_delta_rule, linear, rope_angles, swiglu


class GatedDeltaNet(nn.Module):
    """Linear attention with a constant-size state; the projections interleave by key head, as in the checkpoints."""

    def __init__(self, g: TargetGeometry) -> None:
        super().__init__()
        self.g = g
        channels = 2 * g.key_dim + g.value_dim
        self.in_proj_qkvz = linear(g.hidden_size, channels + g.value_dim)
        self.in_proj_ba = linear(g.hidden_size, 2 * g.linear_num_value_heads)
        self.conv1d = nn.Conv1d(channels, channels, g.linear_conv_kernel_dim, groups=channels, bias=False)
        step = torch.empty(g.linear_num_value_heads).uniform_(-6.9, -2.3).exp()  # 0.001 to 0.1: long memory at first
        self.dt_bias = nn.Parameter(step + torch.log(-torch.expm1(-step)))
        self.A_log = nn.Parameter(torch.empty(g.linear_num_value_heads).uniform_(1, 16).log())
        self.norm = RMSNorm(g.linear_value_head_dim, g.rms_norm_eps)
        self.out_proj = linear(g.value_dim, g.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        g, (batch, length, _) = self.g, x.shape
        share = g.linear_num_value_heads // g.linear_num_key_heads
        value_width = share * g.linear_value_head_dim
        mixed = self.in_proj_qkvz(x).view(batch, length, g.linear_num_key_heads, -1)
        q, k, v, z = mixed.split([g.linear_key_head_dim, g.linear_key_head_dim, value_width, value_width], dim=-1)
        b, a = self.in_proj_ba(x).view(batch, length, g.linear_num_key_heads, -1).chunk(2, dim=-1)

        qkv = torch.cat([part.flatten(2) for part in (q, k, v)], dim=-1).transpose(1, 2)
        qkv = F.silu(self.conv1d(F.pad(qkv, (g.linear_conv_kernel_dim - 1, 0)))).transpose(1, 2)
        q, k, v = qkv.split([g.key_dim, g.key_dim, g.value_dim], dim=-1)
        decay = -self.A_log.float().exp() * F.softplus(a.reshape(batch, length, -1).float() + self.dt_bias.float())
        with torch.autocast(x.device.type, enabled=False):  # it would turn the float32 products into bfloat16 ones
            out = gated_delta_rule(
                q.unflatten(-1, (-1, g.linear_key_head_dim)),
                k.unflatten(-1, (-1, g.linear_key_head_dim)),
                v.unflatten(-1, (-1, g.linear_value_head_dim)),
                decay,
                b.reshape(batch, length, -1).float().sigmoid(),
            )
        gate = F.silu(z.reshape(out.shape).float())
        return self.out_proj((self.norm(out) * gate).to(x.dtype).flatten(2))


class GatedAttention(nn.Module):
    """Full attention with a sigmoid output gate and rotary embedding on a quarter of each head."""

    def __init__(self, g: TargetGeometry) -> None:
        super().__init__()
        self.g = g
        self.q_proj = linear(g.hidden_size, 2 * g.num_attention_heads * g.head_dim)
        self.k_proj = linear(g.hidden_size, g.num_key_value_heads * g.head_dim)
        self.v_proj = linear(g.hidden_size, g.num_key_value_heads * g.head_dim)
        self.o_proj = linear(g.num_attention_heads * g.head_dim, g.hidden_size)
        self.q_norm = RMSNorm(g.head_dim, g.rms_norm_eps, centred=True)
        self.k_norm = RMSNorm(g.head_dim, g.rms_norm_eps, centred=True)

    def forward(self, x: Tensor) -> Tensor:
        g = self.g
        q, gate = self.q_proj(x).unflatten(-1, (g.num_attention_heads, 2 * g.head_dim)).chunk(2, dim=-1)
        k = self.k_norm(self.k_proj(x).unflatten(-1, (-1, g.head_dim)))
        v = self.v_proj(x).unflatten(-1, (-1, g.head_dim))
        positions = torch.arange(x.shape[1], device=x.device).unsqueeze(0)
        cos, sin = rope_angles(positions, int(g.head_dim * g.partial_rotary_factor), g.rope_theta)
        q, k = apply_rope(self.q_norm(q), cos, sin), apply_rope(k, cos, sin)
        share = g.num_attention_heads // g.num_key_value_heads
        k, v = (part.repeat_interleave(share, dim=2).transpose(1, 2) for part in (k, v))
        out = F.scaled_dot_product_attention(q.transpose(1, 2), k, v.to(k.dtype), is_causal=True).transpose(1, 2)
        return self.o_proj((out * gate.sigmoid()).flatten(2))


class DenseMLP(nn.Module):
    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = linear(hidden, inner), linear(hidden, inner)
        self.down_proj = linear(inner, hidden)

    def forward(self, x: Tensor) -> Tensor:
        return swiglu(x, self.gate_proj, self.up_proj, self.down_proj)


class SparseMoE(nn.Module):
    """Top-k experts and a gated shared one. All experts are computed and the unchosen weighted zero: at this size
    one wide product is faster than routing, and it is the same function."""

    def __init__(self, g: TargetGeometry) -> None:
        super().__init__()
        self.g = g
        self.gate = linear(g.hidden_size, g.num_experts)
        self.experts = nn.ModuleList(DenseMLP(g.hidden_size, g.moe_intermediate_size) for _ in range(g.num_experts))
        self.shared_expert = DenseMLP(g.hidden_size, g.shared_expert_intermediate_size)
        self.shared_expert_gate = linear(g.hidden_size, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the output [B, T, hidden] and the load-balancing loss (1.0 when the experts are used evenly)."""
        probabilities = self.gate(x).float().softmax(-1)
        chosen, index = probabilities.topk(self.g.num_experts_per_tok, dim=-1)
        weights = torch.zeros_like(probabilities).scatter(-1, index, chosen / chosen.sum(-1, keepdim=True))
        gate = F.linear(x, torch.cat([expert.gate_proj.weight for expert in self.experts]))
        up = F.linear(x, torch.cat([expert.up_proj.weight for expert in self.experts]))
        inner = (F.silu(gate) * up).unflatten(-1, (self.g.num_experts, -1)) * weights.unsqueeze(-1).to(gate.dtype)
        out = F.linear(inner.flatten(-2), torch.cat([expert.down_proj.weight for expert in self.experts], dim=1))
        used = (weights > 0).float().mean((0, 1)) / self.g.num_experts_per_tok
        balance = self.g.num_experts * (used * probabilities.mean((0, 1))).sum()
        return out + self.shared_expert_gate(x).sigmoid() * self.shared_expert(x), balance


class Layer(nn.Module):
    def __init__(self, g: TargetGeometry, layer_type: str) -> None:
        super().__init__()
        self.is_linear = layer_type == "linear_attention"
        if self.is_linear:
            self.linear_attn = GatedDeltaNet(g)
        else:
            self.self_attn = GatedAttention(g)
        self.mlp = SparseMoE(g)
        self.input_layernorm = RMSNorm(g.hidden_size, g.rms_norm_eps, centred=True)
        self.post_attention_layernorm = RMSNorm(g.hidden_size, g.rms_norm_eps, centred=True)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mixer = self.linear_attn if self.is_linear else self.self_attn
        x = x + mixer(self.input_layernorm(x))
        out, balance = self.mlp(self.post_attention_layernorm(x))
        return x + out, balance


class Body(nn.Module):
    """What checkpoints call `model`."""

    def __init__(self, g: TargetGeometry) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(g.vocab_size, g.hidden_size)
        self.layers = nn.ModuleList(Layer(g, layer_type) for layer_type in g.layer_types)
        self.norm = RMSNorm(g.hidden_size, g.rms_norm_eps, centred=True)


class TargetOutput(NamedTuple):
    """`hidden` [B, T, hidden] is ready for the head; `after_layer[i]` is the residual stream after layer i."""

    hidden: Tensor
    after_layer: list[Tensor]
    balance: Tensor


class Target(nn.Module):
    """The whole model; its state_dict is a Qwen3-Next checkpoint."""

    def __init__(self, g: TargetGeometry) -> None:
        super().__init__()
        self.g = g
        self.model = Body(g)
        self.lm_head = linear(g.hidden_size, g.vocab_size)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                residual = name.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight"))
                scale = (2 * len(g.layer_types)) ** -0.5 if residual else 1.0
                nn.init.normal_(parameter, std=scale * (0.02 if "embed" in name else 256**-0.5 * 0.6))

    def forward(self, ids: Tensor) -> TargetOutput:
        """ids [B, T], T a multiple of 64."""
        x = self.model.embed_tokens(ids)
        after, balances = [], []
        for layer in self.model.layers:
            x, balance = layer(x)
            after.append(x)
            balances.append(balance)
        return TargetOutput(self.model.norm(x), after, torch.stack(balances).mean())
