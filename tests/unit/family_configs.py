"""Configs of the published shapes of further families, targets and drafters."""

from typing import Any

from tests.unit.facts_checkpoints import Json

NANO_PATTERN = "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME"


def nemotron_h(**changes: Any) -> Json:
    """Nemotron-3-Nano-30B-A3B: 52 layers, 23 of them mamba2, 6 attention, 23 MoE."""
    config = {
        "architectures": ["NemotronHForCausalLM"],
        "model_type": "nemotron_h",
        "torch_dtype": "bfloat16",
        "vocab_size": 131072,
        "hidden_size": 2688,
        "num_hidden_layers": 52,
        "hybrid_override_pattern": NANO_PATTERN,
        "num_attention_heads": 32,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "mamba_num_heads": 64,
        "mamba_head_dim": 64,
        "n_groups": 8,
        "ssm_state_size": 128,
        "conv_kernel": 4,
        "mamba_ssm_cache_dtype": "float32",
        "max_position_embeddings": 262144,
    }
    return config | changes


def granite_hybrid(**changes: Any) -> Json:
    """Granite-4.0-H-Small: 40 layers, 4 of them attention."""
    config = {
        "architectures": ["GraniteMoeHybridForCausalLM"],
        "model_type": "granitemoehybrid",
        "torch_dtype": "bfloat16",
        "vocab_size": 100352,
        "hidden_size": 4096,
        "num_hidden_layers": 40,
        "layer_types": (["mamba"] * 5 + ["attention"] + ["mamba"] * 4) * 4,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "mamba_n_heads": 128,
        "mamba_d_head": 64,
        "mamba_n_groups": 1,
        "mamba_d_state": 128,
        "mamba_d_conv": 4,
        "mamba_expand": 2,
        "max_position_embeddings": 131072,
    }
    return config | changes


def falcon_h1(**changes: Any) -> Json:
    """Falcon-H1-34B: 72 layers, each with attention and mamba2."""
    config = {
        "architectures": ["FalconH1ForCausalLM"],
        "model_type": "falcon_h1",
        "torch_dtype": "bfloat16",
        "vocab_size": 261120,
        "hidden_size": 5120,
        "num_hidden_layers": 72,
        "num_attention_heads": 20,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "mamba_n_heads": 32,
        "mamba_d_head": 128,
        "mamba_d_ssm": 4096,
        "mamba_n_groups": 2,
        "mamba_d_state": 256,
        "mamba_d_conv": 4,
        "mamba_expand": 2,
        "max_position_embeddings": 262144,
        "rope_theta": 100000000000.0,
    }
    return config | changes


def gpt_oss(**changes: Any) -> Json:
    """gpt-oss-120b: 36 layers, every other one sliding."""
    config = {
        "architectures": ["GptOssForCausalLM"],
        "model_type": "gpt_oss",
        "torch_dtype": "bfloat16",
        "vocab_size": 201088,
        "hidden_size": 2880,
        "num_hidden_layers": 36,
        "layer_types": ["sliding_attention", "full_attention"] * 18,
        "sliding_window": 128,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "max_position_embeddings": 131072,
    }
    return config | changes


def eagle3(**changes: Any) -> Json:
    """The EAGLE-3 drafter of gpt-oss-120b: one layer."""
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "torch_dtype": "bfloat16",
        "vocab_size": 201088,
        "draft_vocab_size": 32000,
        "hidden_size": 2880,
        "num_hidden_layers": 1,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "max_position_embeddings": 131072,
    }
    return config | changes


def dspark(**changes: Any) -> Json:
    """A dense DSpark drafter for Qwen3.5-35B-A3B, in its own format."""
    config = {
        "architectures": ["Qwen3DSparkModel"],
        "model_type": "qwen3",
        "dtype": "bfloat16",
        "vocab_size": 248320,
        "hidden_size": 2048,
        "num_hidden_layers": 5,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "max_position_embeddings": 262144,
        "block_size": 7,
        "mask_token_id": 248070,
        "target_layer_ids": [1, 10, 19, 28, 37],
        "markov_rank": 256,
    }
    return config | changes


def dspark_speculators(**changes: Any) -> Json:
    """The same in the `speculators` format, with sliding layers."""
    layer = {name: value for name, value in dspark().items() if name not in ("architectures", "block_size")}
    for name in ("mask_token_id", "target_layer_ids", "markov_rank"):
        del layer[name]
    layer |= {"layer_types": ["sliding_attention"] * 5, "sliding_window": 2048}
    config = {
        "architectures": ["DSparkSpeculator"],
        "speculators_model_type": "dspark",
        "transformer_layer_config": layer,
        "aux_hidden_state_layer_ids": [2, 11, 20, 29, 38],
        "mask_token_id": 248070,
        "block_size": 8,
        "markov_rank": 256,
    }
    return config | changes


def qwen3_dense(**changes: Any) -> Json:
    """Qwen3-4B with the vocabulary of Qwen3-Next."""
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "torch_dtype": "bfloat16",
        "vocab_size": 151936,
        "hidden_size": 2560,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "use_sliding_window": False,
        "sliding_window": None,
        "max_window_layers": 36,
        "max_position_embeddings": 40960,
    }
    return config | changes
