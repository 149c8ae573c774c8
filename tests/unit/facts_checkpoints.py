"""Checkpoints made on the spot: configs of the published shapes, safetensors files of a few kilobytes."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Json = dict[str, Any]


def qwen3_5_text(**changes: Any) -> Json:
    """The text config of Qwen3.5-35B-A3B: 40 layers, 30 of them GDN."""
    text = {
        "model_type": "qwen3_5_moe_text",
        "vocab_size": 248320,
        "hidden_size": 2048,
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
        "max_position_embeddings": 262144,
        "dtype": "bfloat16",
    }
    return text | changes


def qwen3_5(architecture: str = "Qwen3_5MoeForConditionalGeneration", **text_changes: Any) -> Json:
    return {
        "architectures": [architecture],
        "model_type": "qwen3_5_moe",
        "text_config": qwen3_5_text(**text_changes),
        "vision_config": {"depth": 27, "hidden_size": 1152},
    }


def qwen3_next(**changes: Any) -> Json:
    """Qwen3-Next-80B-A3B: flat, 48 layers, every fourth full, by `full_attention_interval`."""
    config = qwen3_5_text(vocab_size=151936, num_hidden_layers=48, full_attention_interval=4)
    del config["layer_types"], config["mamba_ssm_dtype"], config["dtype"]
    return (
        config
        | {"architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next", "torch_dtype": "bfloat16"}
        | changes
    )


def dflash(**changes: Any) -> Json:
    """The drafter of Qwen3.5-35B-A3B: 5 sliding layers, then a full one."""
    config = {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "dtype": "bfloat16",
        "vocab_size": 248320,
        "hidden_size": 2048,
        "num_hidden_layers": 6,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 262144,
        "layer_types": ["sliding_attention"] * 5 + ["full_attention"],
        "sliding_window": 4096,
        "use_sliding_window": True,
        "max_window_layers": 6,
        "block_size": 16,
        "num_target_layers": 40,
        "dflash_config": {"mask_token_id": 248070, "target_layer_ids": [1, 6, 11, 16, 22, 27, 32, 37]},
    }
    return config | changes


def without(config: Json, *names: str) -> Json:
    return {name: value for name, value in config.items() if name not in names}


def safetensors(tensors: Mapping[str, bytes], dtype: str = "BF16") -> bytes:
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, value in tensors.items():
        header[name] = {"dtype": dtype, "shape": [len(value) // 2], "data_offsets": [len(data), len(data) + len(value)]}
        data += value
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def write_checkpoint(folder: Path, config: Json, files: Mapping[str, bytes] | None = None) -> str:
    """A model folder; its path as a string, as a user gives it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    for name, content in (files or {}).items():
        (folder / name).write_bytes(content)
    return str(folder)


def index_of(*names: str) -> bytes:
    return json.dumps({"weight_map": {f"tensor.{i}": name for i, name in enumerate(names)}}).encode()


def write_hub_cache(
    cache: Path, repo_id: str, commit: str, files: Mapping[str, bytes], *, shared_store: bool = False
) -> Path:
    """A Hugging Face cache as the hub client lays it out; the snapshot folder.

    With `shared_store` the blobs of weights are links into one more store, under another hash.
    """
    repo = cache / f"models--{repo_id.replace('/', '--')}"
    snapshot = repo / "snapshots" / commit
    for folder in (repo / "refs", repo / "blobs", snapshot):
        folder.mkdir(parents=True, exist_ok=True)
    (repo / "refs" / "main").write_text(commit)
    for name, content in files.items():
        blob = repo / "blobs" / hashlib.sha256(content).hexdigest()
        if shared_store and name.endswith(".safetensors"):
            stored = cache / "blobs" / "ab" / hashlib.blake2s(content).hexdigest()
            stored.parent.mkdir(parents=True, exist_ok=True)
            stored.write_bytes(content)
            blob.symlink_to(Path("../../blobs/ab") / stored.name)
        else:
            blob.write_bytes(content)
        (snapshot / name).symlink_to(Path("../../blobs") / blob.name)
    return snapshot
