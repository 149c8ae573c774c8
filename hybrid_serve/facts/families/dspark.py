"""DSpark drafters that vLLM runs with its `qwen3_dspark` module: a DFlash backbone and one more head."""

from typing import Any

from hybrid_serve.facts.config import Config
from hybrid_serve.facts.families.base import DrafterMethod, DrafterShape, in_order, longest_context
from hybrid_serve.facts.families.dflash import block_attention

MASKS = ("mask_token_id", "dspark_noise_token_id", "pard_token", "ptd_token_id")


def _shape(config: Config) -> DrafterShape:
    config = _from_speculators(config)
    if config.values.get("model_type") not in ("qwen3", None):
        raise config.wrong("model_type", "qwen3: other DSpark drafters have MLA or other layers, which are not planned")
    hidden_size = config.integer("hidden_size")
    return DrafterShape(
        hidden_size=hidden_size,
        target_hidden_size=config.integer("target_hidden_size", hidden_size),
        vocab_size=config.integer("vocab_size"),
        block_size=config.integer("block_size"),
        samples_anchor=config.boolean("sample_from_anchor", True),
        mask_token_id=_mask_token_id(config),
        target_layer_ids=_target_layer_ids(config),
        max_position_embeddings=longest_context(config),
        layers=in_order(block_attention(config, i) for i in range(config.integer("num_hidden_layers"))),
    )


def _from_speculators(config: Config) -> Config:
    """The `speculators` format, rewritten as vLLM does (transformers_utils/configs/speculators/algos.py)."""
    if config.values.get("speculators_model_type") != DSPARK.speculators:
        return config
    kept = ("target_hidden_size", "mask_token_id", "block_size")
    values: dict[str, Any] = {name: config.values[name] for name in kept if name in config}
    values["sample_from_anchor"] = config.boolean("sample_from_anchor")
    values["eagle_aux_hidden_state_layer_ids"] = list(config.integers("aux_hidden_state_layer_ids"))
    layer = config.section("transformer_layer_config").values
    return Config({**layer, "model_type": None, **values}, config.where)


def _mask_token_id(config: Config) -> int:
    """In vLLM's order (v1/worker/gpu/spec_decode/utils.py)."""
    if "mask_token_id" in config.section("dflash_config"):
        return config.section("dflash_config").integer("mask_token_id", minimum=0)
    name = next((name for name in MASKS if name in config), MASKS[0])
    return config.integer(name, minimum=0)


def _target_layer_ids(config: Config) -> tuple[int, ...]:
    """In vLLM's order (v1/worker/gpu/spec_decode/eagle/eagle3_utils.py); only the first counts the embedding as 0."""
    if config.values.get("eagle_aux_hidden_state_layer_ids"):
        return tuple(i - 1 for i in config.integers("eagle_aux_hidden_state_layer_ids"))
    if config.section("dflash_config").values.get("target_layer_ids"):
        return config.section("dflash_config").integers("target_layer_ids")
    name = "dspark_target_layer_ids" if config.values.get("dspark_target_layer_ids") else "target_layer_ids"
    return config.integers(name)


DSPARK = DrafterMethod(
    name="dspark",
    # vllm/config/speculative.py: DSparkDraftModel with model_type qwen3 is run as Qwen3DSparkModel.
    architectures=("Qwen3DSparkModel", "DSparkDraftModel"),
    shape=_shape,
    speculators="dspark",
)
