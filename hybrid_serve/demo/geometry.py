"""Sizes of the demo pair and the config.json each of them ships.

The sizes are chosen so that the pair shows the problem this project is about: the drafter's KV cache takes 512
bytes per token and layer, the target's 256, and six of the target's eight layers keep a fixed GDN state instead.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
TARGET_DIR = HERE / "target"
DRAFT_DIR = HERE / "draft"

FULL, SLIDING = "full_attention", "sliding_attention"
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|mask|>")
END_OF_TEXT, IM_START, IM_END, MASK = range(4)  # their token ids


@dataclass(frozen=True, kw_only=True)
class TargetGeometry:
    """Sizes of the target, a Qwen3-Next architecture."""

    vocab_size: int = 1024
    hidden_size: int = 256
    layer_types: tuple[str, ...] = (("linear_attention",) * 3 + ("full_attention",)) * 2
    num_attention_heads: int = 4
    num_key_value_heads: int = 1
    head_dim: int = 64
    partial_rotary_factor: float = 0.25
    rope_theta: float = 10_000.0
    linear_num_key_heads: int = 2
    linear_num_value_heads: int = 4
    linear_key_head_dim: int = 64
    linear_value_head_dim: int = 64
    linear_conv_kernel_dim: int = 4
    num_experts: int = 4
    num_experts_per_tok: int = 2
    moe_intermediate_size: int = 64
    shared_expert_intermediate_size: int = 64
    max_position_embeddings: int = 4096
    rms_norm_eps: float = 1e-6

    @property
    def key_dim(self) -> int:
        return self.linear_num_key_heads * self.linear_key_head_dim

    @property
    def value_dim(self) -> int:
        return self.linear_num_value_heads * self.linear_value_head_dim

    def config(self) -> dict[str, Any]:
        """The config.json that transformers and vLLM read."""
        return {
            "architectures": ["Qwen3NextForCausalLM"],
            "model_type": "qwen3_next",
            "dtype": "bfloat16",
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "intermediate_size": 2 * self.moe_intermediate_size,
            "num_hidden_layers": len(self.layer_types),
            "layer_types": list(self.layer_types),
            "full_attention_interval": 4,
            "num_attention_heads": self.num_attention_heads,
            "num_key_value_heads": self.num_key_value_heads,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "attention_bias": False,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": self.rope_theta,
                "partial_rotary_factor": self.partial_rotary_factor,
            },
            "linear_num_key_heads": self.linear_num_key_heads,
            "linear_num_value_heads": self.linear_num_value_heads,
            "linear_key_head_dim": self.linear_key_head_dim,
            "linear_value_head_dim": self.linear_value_head_dim,
            "linear_conv_kernel_dim": self.linear_conv_kernel_dim,
            "num_experts": self.num_experts,
            "num_experts_per_tok": self.num_experts_per_tok,
            "moe_intermediate_size": self.moe_intermediate_size,
            "shared_expert_intermediate_size": self.shared_expert_intermediate_size,
            "norm_topk_prob": True,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
            "max_position_embeddings": self.max_position_embeddings,
            "rms_norm_eps": self.rms_norm_eps,
            "tie_word_embeddings": False,
            "eos_token_id": IM_END,
            "pad_token_id": END_OF_TEXT,
        }


@dataclass(frozen=True, kw_only=True)
class DraftGeometry:
    """Sizes of the DFlash drafter; it borrows the target's embedding and head.

    With a `sliding_window`, every layer but the last is a sliding one and sees that many tokens, its own among them.

    Raises:
        ValueError: the window is shorter than a block, or there is no layer that could slide.
    """

    hidden_size: int = 256
    num_layers: int = 2
    sliding_window: int | None = None
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 64
    intermediate_size: int = 384
    rope_theta: float = 10_000.0
    rms_norm_eps: float = 1e-6
    block_size: int = 8
    target_layer_ids: tuple[int, ...] = (1, 4, 6)

    def __post_init__(self) -> None:
        least = 1 if self.sliding_window is None else 2
        if self.num_layers < least:
            window = "without a sliding window" if least == 1 else "with a sliding window (the last layer is full)"
            raise ValueError(f"num_layers is {self.num_layers}; give {least} or more {window}")
        if self.sliding_window is not None and self.sliding_window < self.block_size:
            raise ValueError(
                f"a sliding window of {self.sliding_window} hides a block's first token from its last; "
                f"give {self.block_size}, the block's size, or more"
            )

    @property
    def layer_types(self) -> tuple[str, ...]:
        first = FULL if self.sliding_window is None else SLIDING
        return (first,) * (self.num_layers - 1) + (FULL,)

    @property
    def num_speculative_tokens(self) -> int:
        """K: a block is the bonus token and K drafted ones."""
        return self.block_size - 1

    def config(self, target: TargetGeometry) -> dict[str, Any]:
        """The config.json that vLLM reads for `method: dflash`.

        `use_sliding_window` is needed beside `layer_types`: without it, transformers' Qwen3Config drops the window.
        `max_window_layers` says nothing where there are `layer_types`; published drafters carry it.
        """
        windowed = self.sliding_window is not None
        window = {"sliding_window": self.sliding_window, "max_window_layers": self.num_layers} if windowed else {}
        return {
            "architectures": ["DFlashDraftModel"],
            "model_type": "qwen3",
            "dtype": "bfloat16",
            "vocab_size": target.vocab_size,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.num_layers,
            "layer_types": list(self.layer_types),
            "use_sliding_window": windowed,
            **window,
            "num_attention_heads": self.num_attention_heads,
            "num_key_value_heads": self.num_key_value_heads,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "attention_bias": False,
            "rope_theta": self.rope_theta,
            "max_position_embeddings": target.max_position_embeddings,
            "rms_norm_eps": self.rms_norm_eps,
            "tie_word_embeddings": False,
            "eos_token_id": IM_END,
            "block_size": self.block_size,
            "num_target_layers": len(target.layer_types),
            "dflash_config": {"mask_token_id": MASK, "target_layer_ids": list(self.target_layer_ids)},
        }
