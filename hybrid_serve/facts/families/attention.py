"""Attention layers of Llama and Qwen3 configs, with the defaults of transformers' config classes."""

from hybrid_serve.facts.config import Config

SLIDING = "sliding_attention"


def kv_heads(config: Config) -> int:
    """Null is one KV head per query head; an absent field is that too for Llama, and 32 for Qwen3."""
    heads = config.integer("num_attention_heads")
    if is_qwen3(config):
        return config.integer("num_key_value_heads", heads if "num_key_value_heads" in config.values else 32)
    return config.integer("num_key_value_heads", heads if config.values.get("model_type") == "llama" else None)


def head_dim(config: Config) -> int:
    """Qwen3's config class has 128 where the file says nothing; the modules themselves divide the hidden size."""
    default = 128 if is_qwen3(config) else config.integer("hidden_size") // config.integer("num_attention_heads")
    return config.integer("head_dim", default)


def sliding_window(config: Config) -> int | None:
    """`sliding_window`; Qwen3Config drops it (4096 where the file says nothing) unless `use_sliding_window` is true."""
    window = config.optional_integer("sliding_window")
    if is_qwen3(config):
        if "sliding_window" not in config.values:
            window = 4096
        if not config.boolean("use_sliding_window"):
            window = None
    return window


def layer_types(config: Config) -> tuple[str, ...] | None:
    """`layer_types`; Qwen3Config fills absent ones from `max_window_layers`. None where there are none."""
    count = config.integer("num_hidden_layers")
    if "layer_types" in config:
        types = config.strings("layer_types")
        if len(types) != count:
            raise config.wrong("layer_types", f"num_hidden_layers = {count} entries")
        return types
    if not is_qwen3(config):
        return None
    windowed = sliding_window(config) is not None
    full_below = config.integer("max_window_layers", 28, minimum=0) if windowed else count
    return tuple("full_attention" if i < full_below else SLIDING for i in range(count))


def is_qwen3(config: Config) -> bool:
    return config.values.get("model_type") == "qwen3"
