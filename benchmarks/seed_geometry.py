"""A pair with exactly the KV geometry of Qwen3.5-35B-A3B and its DFlash drafter, small enough to carry about.

    python -m benchmarks.seed_geometry DIR

Random bfloat16 weights, 8 experts instead of 256 and 32,768 tokens of vocabulary: DIR/target takes 4.8 GiB (30 GDN
layers, 10 of full attention with 2 KV heads of 256), DIR/draft 0.7 GiB (5 sliding layers with a window of 4,096 and 1
full, 8 KV heads of 128). Needs one GPU, and a transformers that knows qwen3_5_moe. The sizes are those of the two
public config.json files.
"""

import argparse
import json
import random
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from tokenizers.trainers import BpeTrainer

VOCABULARY = 32_768
HIDDEN = 2048
TARGET_LAYER_IDS = [1, 6, 11, 16, 22, 27, 32, 37]
WORDS = 60_000
"""Random words from which the tokenizer learns its tokens."""
SPECIAL = ["<|endoftext|>", "<|mask|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]

TEXT = {
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "num_hidden_layers": 40,
    "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 10,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "mamba_ssm_dtype": "float32",
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "max_position_embeddings": 262_144,
    "eos_token_id": 0,
    "bos_token_id": 0,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10_000_000,
        "partial_rotary_factor": 0.25,
        "mrope_section": [11, 11, 10],
        "mrope_interleaved": True,
    },
}
VISION = {
    "depth": 1,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_heads": 2,
    "out_hidden_size": HIDDEN,
    "num_position_embeddings": 64,
    "deepstack_visual_indexes": [],
}
VISION_IDS = {"vision_start_token_id": 2, "vision_end_token_id": 3, "image_token_id": 4, "video_token_id": 5}

LAYERS, HEADS, KV_HEADS, HEAD_DIM, MLP = 6, 32, 8, 128, 6144
DRAFTER = {
    "architectures": ["DFlashDraftModel"],
    "model_type": "qwen3",
    "dtype": "bfloat16",
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "intermediate_size": MLP,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "max_position_embeddings": 262_144,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10_000_000,
    "tie_word_embeddings": False,
    "eos_token_id": 0,
    "layer_types": ["sliding_attention"] * (LAYERS - 1) + ["full_attention"],
    "sliding_window": 4096,
    "use_sliding_window": True,
    "max_window_layers": LAYERS,
    "block_size": 16,
    "num_target_layers": 40,
    "dflash_config": {"mask_token_id": 1, "target_layer_ids": TARGET_LAYER_IDS},
}


def write_json(path: Path, value: dict[str, Any]) -> None:
    """`value` as a file."""
    path.write_text(json.dumps(value, indent=1))


def write_tokenizer(folder: Path) -> None:
    """A byte-level tokenizer, and the image and video processors without which the Qwen3.5 class does not load.

    It has as many tokens as the model: an id that it did not know would give no text, and vLLM's server then decodes
    the whole prompt again for each such token, which takes longer than a step of many requests.
    """
    from transformers import PreTrainedTokenizerFast

    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = BpeTrainer(vocab_size=VOCABULARY, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False)
    source = random.Random(2026)
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = ["".join(source.choices(letters, k=source.randrange(2, 9))) for _ in range(WORDS)]
    tokenizer.train_from_iterator([" ".join(words)], trainer)
    if (size := tokenizer.get_vocab_size()) != VOCABULARY:
        raise SystemExit(f"the tokenizer has {size} tokens, the model {VOCABULARY}: raise WORDS")
    names = dict(zip(["vision_bos_token", "vision_eos_token", "image_token", "video_token"], SPECIAL[2:], strict=True))
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=SPECIAL[0], extra_special_tokens=names)
    wrapped.save_pretrained(folder)
    patches = {"patch_size": 16, "temporal_patch_size": 2, "merge_size": 2}
    common = patches | {"image_mean": [0.5] * 3, "image_std": [0.5] * 3, "processor_class": "Qwen3VLProcessor"}
    image = {"image_processor_type": "Qwen2VLImageProcessorFast"}
    video = {"video_processor_type": "Qwen3VLVideoProcessor"}
    pixels = {"longest_edge": 16_777_216, "shortest_edge": 65_536}
    frames = {"longest_edge": 25_165_824, "shortest_edge": 4096}
    write_json(folder / "preprocessor_config.json", common | image | {"size": pixels})
    write_json(folder / "video_preprocessor_config.json", common | video | {"size": frames})


def write_target(folder: Path) -> None:
    """The target, initialised by transformers' own class."""
    from transformers.models.qwen3_5_moe import Qwen3_5MoeConfig, Qwen3_5MoeForConditionalGeneration

    write_tokenizer(folder)
    with torch.device("cuda"):
        config = Qwen3_5MoeConfig(text_config=TEXT, vision_config=VISION, **VISION_IDS)
        Qwen3_5MoeForConditionalGeneration(config).save_pretrained(folder)


def write_drafter(folder: Path) -> None:
    """The drafter: weights of the names and shapes that vLLM's class loads."""
    write_tokenizer(folder)

    def drawn(*shape: int) -> torch.Tensor:
        return (torch.randn(*shape, device="cuda") * 0.02).cpu()

    weights = {
        "fc.weight": drawn(HIDDEN, HIDDEN * len(TARGET_LAYER_IDS)),
        "hidden_norm.weight": torch.ones(HIDDEN),
        "norm.weight": torch.ones(HIDDEN),
    }
    projections = {
        "self_attn.q_proj": (HEADS * HEAD_DIM, HIDDEN),
        "self_attn.k_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
        "self_attn.v_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
        "self_attn.o_proj": (HIDDEN, HEADS * HEAD_DIM),
        "mlp.gate_proj": (MLP, HIDDEN),
        "mlp.up_proj": (MLP, HIDDEN),
        "mlp.down_proj": (HIDDEN, MLP),
    }
    norms = {
        "self_attn.q_norm": HEAD_DIM,
        "self_attn.k_norm": HEAD_DIM,
        "input_layernorm": HIDDEN,
        "post_attention_layernorm": HIDDEN,
    }
    for layer in range(LAYERS):
        weights |= {f"layers.{layer}.{name}.weight": drawn(*shape) for name, shape in projections.items()}
        weights |= {f"layers.{layer}.{name}.weight": torch.ones(size) for name, size in norms.items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    write_json(folder / "config.json", DRAFTER)


def main() -> None:
    """Write both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    write_target(folder / "target")
    write_drafter(folder / "draft")


if __name__ == "__main__":
    main()
