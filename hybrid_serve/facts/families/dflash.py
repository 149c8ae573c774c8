"""DFlash drafters that vLLM runs with its `qwen3_dflash` module."""

from hybrid_serve.facts.config import Config
from hybrid_serve.facts.families.attention import SLIDING, head_dim, kv_heads, layer_types, sliding_window
from hybrid_serve.facts.families.base import DrafterMethod, DrafterShape, in_order, longest_context
from hybrid_serve.facts.layers import AttentionLayers


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
        layers=in_order(block_attention(config, i) for i in range(config.integer("num_hidden_layers"))),
    )


def _from_speculators(config: Config) -> Config:
    """The `speculators` format, rewritten as vLLM does (transformers_utils/configs/speculators/algos.py).

    Its layer ids count the embedding as 0, ours do not.
    """
    if config.values.get("speculators_model_type") != DFLASH.speculators:
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


def block_attention(config: Config, layer: int) -> AttentionLayers:
    """One layer of vLLM's `qwen3_dflash` backbone."""
    window = _window(config, layer)
    return AttentionLayers(
        kind="full" if window is None else "sliding",
        count=1,
        kv_heads=kv_heads(config),
        head_dim=head_dim(config),
        window=window,
    )


def _window(config: Config, layer: int) -> int | None:
    """The sliding window of one layer, None for full attention.

    vLLM's rule (model_executor/models/qwen3_dflash.py, _resolve_layer_attention): `layer_types` decides, but
    `dflash_config.use_swa` makes all layers sliding if there are no layer types or none of them is sliding; the window
    is `dflash_config.swa_window_size`, or else `sliding_window`.
    """
    dflash = config.section("dflash_config")
    types = layer_types(config)
    if types is None or (dflash.boolean("use_swa") and SLIDING not in types):
        sliding = dflash.boolean("use_swa")
    else:
        sliding = types[layer] == SLIDING
    if not sliding:
        return None
    if "swa_window_size" in dflash:
        return dflash.integer("swa_window_size")
    window = sliding_window(config)
    if window is None:
        raise config.wrong(
            "sliding_window",
            "a window for the sliding layers, with use_sliding_window true (or dflash_config.swa_window_size)",
        )
    return window


DFLASH = DrafterMethod(
    name="dflash",
    # vllm/model_executor/models/registry.py: the names mapped to qwen3_dflash.
    architectures=("DFlashDraftModel", "MuseGlimmerAssistantModel", "DFlashMuseGlimmerAssistantModel"),
    shape=_shape,
    speculators="dflash",
)
