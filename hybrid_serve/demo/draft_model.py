"""The DFlash drafter in plain PyTorch, for training; its state_dict is the checkpoint that vLLM loads.

One forward drafts a whole block: the queries are the last token the target chose (the anchor) and K mask tokens,
which see each other without a causal mask and, through keys and values projected from the target's hidden states,
every token before the anchor (arXiv 2602.06036). In a sliding layer they see less: `within_window`.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hybrid_serve.demo.geometry import FULL, SLIDING, DraftGeometry
from hybrid_serve.demo.layers import RMSNorm, apply_rope, linear, rope_angles
from hybrid_serve.demo.target_model import DenseMLP


def within_window(visible: Tensor, positions: Tensor, window: int) -> Tensor:
    """What a sliding layer sees of `visible` [B, 1, Q, T + Q]: keys k with 0 <= q - k < window, in positions.

    q are the queries' `positions` [B, Q]; the keys are the context at 0..T-1 and, after it, the queries themselves.
    For K = 2, a window of 3 and the anchor at 5, the queries at 5, 6 and 7 see 3 to 5, 4 to 6 and 5 to 7.

    The rule is vLLM 0.29.0's, so that what is trained is what is served:

    - A sliding layer is causal, in the block too, and a full one is not: `_dflash_layer_causal` in
      model_executor/models/qwen3_dflash.py, unless the config says `is_causal` or `dflash_config.causal`.
    - So it reaches the kernels: `get_draft_attn_causal` gives DFlashSpeculator (v1/worker/gpu/spec_decode/dflash/
      speculator.py) one answer per KV cache group, which `build_attn_metadata` (v1/worker/gpu/attn_utils.py) hands to
      each group's backend. The older model runner has one answer for all layers and refuses a mixed drafter.
    - The window counts the query's own token: v1/attention/backends/flash_attn.py turns W into (W - 1, 0), and queries
      are the last tokens of a sequence that ends with the block. The CPU backend's kernel gives the same.
    """
    batch, _, _, keys = visible.shape
    context = torch.arange(keys - positions.shape[1], device=positions.device).expand(batch, -1)
    key = torch.cat([context, positions], dim=1).unsqueeze(1)  # [B, 1, T + Q]
    query = positions.unsqueeze(2)  # [B, Q, 1]
    # Two comparisons, not one of q - k: the difference would be eight bytes per entry, in the largest tensor of all.
    return visible & ((key <= query) & (key > query - window)).unsqueeze(1)


class DraftAttention(nn.Module):
    def __init__(self, g: DraftGeometry) -> None:
        super().__init__()
        self.g = g
        self.q_proj = linear(g.hidden_size, g.num_attention_heads * g.head_dim)
        self.k_proj = linear(g.hidden_size, g.num_key_value_heads * g.head_dim)
        self.v_proj = linear(g.hidden_size, g.num_key_value_heads * g.head_dim)
        self.o_proj = linear(g.num_attention_heads * g.head_dim, g.hidden_size)
        self.q_norm = RMSNorm(g.head_dim, g.rms_norm_eps)
        self.k_norm = RMSNorm(g.head_dim, g.rms_norm_eps)

    def forward(self, x: Tensor, context: Tensor, positions: Tensor, visible: Tensor) -> Tensor:
        """x [B, Q, hidden] at `positions` [B, Q]; context [B, T, hidden] at 0..T-1; visible [B, 1, Q, T + Q]."""
        g = self.g
        at = torch.arange(context.shape[1], device=x.device).expand(len(x), -1)
        source = torch.cat([context, x], dim=1)  # the same projections read the target's features and the queries
        k = self.k_norm(self.k_proj(source).unflatten(-1, (-1, g.head_dim)))
        v = self.v_proj(source).unflatten(-1, (-1, g.head_dim))
        q = self.q_norm(self.q_proj(x).unflatten(-1, (-1, g.head_dim)))
        q = apply_rope(q, *rope_angles(positions, g.head_dim, g.rope_theta))
        k = apply_rope(k, *rope_angles(torch.cat([at, positions], dim=1), g.head_dim, g.rope_theta))
        share = g.num_attention_heads // g.num_key_value_heads
        k, v = (part.repeat_interleave(share, dim=2).transpose(1, 2) for part in (k, v))
        out = F.scaled_dot_product_attention(q.transpose(1, 2), k, v.to(k.dtype), attn_mask=visible)
        return self.o_proj(out.transpose(1, 2).flatten(2))


class DraftLayer(nn.Module):
    def __init__(self, g: DraftGeometry) -> None:
        super().__init__()
        self.self_attn = DraftAttention(g)
        self.mlp = DenseMLP(g.hidden_size, g.intermediate_size)
        self.input_layernorm = RMSNorm(g.hidden_size, g.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(g.hidden_size, g.rms_norm_eps)

    def forward(self, x: Tensor, context: Tensor, positions: Tensor, visible: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), context, positions, visible)
        return x + self.mlp(self.post_attention_layernorm(x))


class Drafter(nn.Module):
    def __init__(self, g: DraftGeometry) -> None:
        super().__init__()
        self.g = g
        self.fc = linear(len(g.target_layer_ids) * g.hidden_size, g.hidden_size)
        self.hidden_norm = RMSNorm(g.hidden_size, g.rms_norm_eps)
        self.layers = nn.ModuleList(DraftLayer(g) for _ in range(g.num_layers))
        self.norm = RMSNorm(g.hidden_size, g.rms_norm_eps)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                residual = name.endswith(("o_proj.weight", "down_proj.weight"))
                nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5 * (0.3 if residual else 0.6))

    def forward(self, embedded: Tensor, features: Tensor, positions: Tensor, visible: Tensor) -> Tensor:
        """embedded [B, Q, hidden]: embeddings of the queries; features [B, T, 3 * hidden]: the target's hidden states
        after `target_layer_ids`, concatenated; visible [B, 1, Q, T + Q]: what the full layers see. Returns
        [B, Q, hidden], ready for the target's head."""
        visible_to = {FULL: visible}
        if self.g.sliding_window is not None:
            visible_to[SLIDING] = within_window(visible, positions, self.g.sliding_window)
        context = self.hidden_norm(self.fc(features))
        x = embedded
        for layer_type, layer in zip(self.g.layer_types, self.layers, strict=True):
            x = layer(x, context, positions, visible_to[layer_type])
        return self.norm(x)
