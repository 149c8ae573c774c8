"""DFlash drafters that vLLM runs with its `qwen3_dflash` module."""

from hybrid_serve.facts.config import Config
from hybrid_serve.facts.families.base import DrafterMethod, DrafterShape, in_order, longest_context
from hybrid_serve.facts.layers import AttentionLayers

SLIDING = "sliding_attention"


def _shape(config: Config) -> DrafterShape:
    config = _from_speculators(config)
    dflash = config.section("dflash_config")

    def either(name: str) -> Config:
        """`dflash_config` first, the root otherwise: vLLM's precedence."""
        return dflash if name in dflash or name not in config else config

    hidden_size = config.integer("hidden_size")
    return DrafterShape(
        hidden_size=hidden_size,
        target_hidden_size=config.integer("target_hidden_size", hidden_size),
        vocab_size=config.integer("vocab_size"),
        block_size=(dflash if "block_size" in dflash else config).integer("block_size", minimum=2),
        mask_token_id=either("mask_token_id").integer("mask_token_id", minimum=0),
        target_layer_ids=_target_layer_ids(config, either("target_layer_ids")),
        num_target_layers=either("num_target_layers").optional_integer("num_target_layers"),
        max_position_embeddings=longest_context(config),
        layers=in_order(_attention(config, i) for i in range(config.integer("num_hidden_layers"))),
    )


def _from_speculators(config: Config) -> Config:
    """The `speculators` format, rewritten as vLLM does (transformers_utils/configs/speculators/algos.py).

    Its layer ids count the embedding as 0, ours do not.
    """
    if config.values.get("speculators_model_type") != "dflash":
        return config
    ids = [i - 1 for i in config.integers("aux_hidden_state_layer_ids")]
    keep = ("target_hidden_size", "block_size", "num_target_layers", "mask_token_id")
    values = {name: config.values[name] for name in keep if name in config}
    layer = config.section("transformer_layer_config").values
    return Config({**layer, "model_type": None, **values, "dflash_config": {"target_layer_ids": ids}}, config.where)


def _target_layer_ids(config: Config, holder: Config) -> tuple[int, ...]:
    """vLLM lets `eagle_aux_hidden_state_layer_ids` win, which counts the embedding as 0."""
    if "eagle_aux_hidden_state_layer_ids" in config:
        return tuple(i - 1 for i in config.integers("eagle_aux_hidden_state_layer_ids"))
    return holder.integers("target_layer_ids")


def _attention(config: Config, layer: int) -> AttentionLayers:
    window = _window(config, layer)
    heads = config.integer("num_attention_heads")
    return AttentionLayers(
        kind="full" if window is None else "sliding",
        count=1,
        kv_heads=_kv_heads(config, heads),
        head_dim=_head_dim(config, heads),
        window=window,
    )


def _kv_heads(config: Config, heads: int) -> int:
    """Qwen3's config class takes null as one KV head per query head, and has 32 where the file says nothing."""
    if not _is_qwen3(config):
        return config.integer("num_key_value_heads")
    return config.integer("num_key_value_heads", heads if "num_key_value_heads" in config.values else 32)


def _head_dim(config: Config, heads: int) -> int:
    """Qwen3's config class has 128 where the file says nothing; the module itself divides the hidden size."""
    default = 128 if _is_qwen3(config) else config.integer("hidden_size") // heads
    return config.integer("head_dim", default)


def _window(config: Config, layer: int) -> int | None:
    """The sliding window of one layer, None for full attention.

    vLLM's rule (model_executor/models/qwen3_dflash.py, _resolve_layer_attention): `layer_types` decides, but
    `dflash_config.use_swa` makes all layers sliding if there are no layer types or none of them is sliding; the window
    is `dflash_config.swa_window_size`, or else `sliding_window`. Before it sees them, transformers' Qwen3Config drops
    `sliding_window` (4096 where the file says nothing) unless `use_sliding_window` is true, and fills absent layer
    types from `max_window_layers`.
    """
    dflash = config.section("dflash_config")
    window = config.optional_integer("sliding_window")
    if _is_qwen3(config):
        if "sliding_window" not in config.values:
            window = 4096
        if not config.boolean("use_sliding_window"):
            window = None
    types = _layer_types(config, window)
    if types is None or (dflash.boolean("use_swa") and SLIDING not in types):
        sliding = dflash.boolean("use_swa")
    else:
        sliding = types[layer] == SLIDING
    if not sliding:
        return None
    if "swa_window_size" in dflash:
        return dflash.integer("swa_window_size")
    if window is None:
        raise config.wrong(
            "sliding_window",
            "a window for the sliding layers, with use_sliding_window true (or dflash_config.swa_window_size)",
        )
    return window


def _layer_types(config: Config, window: int | None) -> tuple[str, ...] | None:
    count = config.integer("num_hidden_layers")
    if "layer_types" in config:
        types = config.strings("layer_types")
        if len(types) != count:
            raise config.wrong("layer_types", f"num_hidden_layers = {count} entries")
        return types
    if not _is_qwen3(config):
        return None
    full_below = config.integer("max_window_layers", 28, minimum=0) if window is not None else count
    return tuple("full_attention" if i < full_below else SLIDING for i in range(count))


def _is_qwen3(config: Config) -> bool:
    return config.values.get("model_type") == "qwen3"


DFLASH = DrafterMethod(
    name="dflash",
    # vllm/model_executor/models/registry.py: the names mapped to qwen3_dflash.
    architectures=("DFlashDraftModel", "MuseGlimmerAssistantModel", "DFlashMuseGlimmerAssistantModel"),
    shape=_shape,
)
