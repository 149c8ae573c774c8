"""EAGLE-3 drafters: Llama or Qwen3 decoder layers, usually one, fed the hidden states of some target layers."""

from hybrid_serve.facts.config import Config
from hybrid_serve.facts.families.attention import SLIDING, head_dim, kv_heads, layer_types, sliding_window
from hybrid_serve.facts.families.base import DrafterMethod, DrafterShape, in_order, longest_context
from hybrid_serve.facts.layers import AttentionLayers


def _shape(config: Config) -> DrafterShape:
    config = _from_speculators(config)
    hidden_size = config.integer("hidden_size")
    return DrafterShape(
        hidden_size=hidden_size,
        target_hidden_size=config.integer("target_hidden_size", hidden_size),
        vocab_size=config.integer("vocab_size"),
        target_layer_ids=_target_layer_ids(config),
        max_position_embeddings=longest_context(config),
        layers=in_order(_attention(config, i) for i in range(config.integer("num_hidden_layers"))),
    )


def _from_speculators(config: Config) -> Config:
    """The `speculators` format, rewritten as vLLM does (transformers_utils/configs/speculators/algos.py). The result is
    a bare config: defaults of Qwen3's config class do not apply, those of Llama's are the module's own."""
    if config.values.get("speculators_model_type") != EAGLE3.speculators:
        return config
    layer = config.section("transformer_layer_config").values
    kept = ("target_hidden_size", "eagle_aux_hidden_state_layer_ids")
    values = {name: config.values[name] for name in kept if name in config}
    model_type = "llama" if layer.get("model_type", "llama") == "llama" else None
    return Config({**layer, "model_type": model_type, **values}, config.where)


def _target_layer_ids(config: Config) -> tuple[int, ...]:
    """vLLM's ids count the embedding as 0 (v1/worker/gpu/spec_decode/eagle/eagle3_utils.py)."""
    for section, name in (
        (config, "eagle_aux_hidden_state_layer_ids"),
        (config.section("eagle_config"), "eagle_aux_hidden_state_layer_ids"),
        (config.section("eagle_config"), "layer_ids"),
    ):
        if section.values.get(name):
            return tuple(i - 1 for i in section.integers(name))
    return ()


def _attention(config: Config, layer: int) -> AttentionLayers:
    """Sliding where `layer_types` says so and there is a window (model_executor/models/llama.py, qwen3_eagle3.py)."""
    types = layer_types(config)
    window = sliding_window(config) if types is not None and types[layer] == SLIDING else None
    return AttentionLayers(
        kind="full" if window is None else "sliding",
        count=1,
        kv_heads=kv_heads(config),
        head_dim=head_dim(config),
        window=window,
    )


EAGLE3 = DrafterMethod(
    name="eagle3",
    # vllm/model_executor/models/registry.py: the names mapped to llama_eagle3 and qwen3_eagle3, without those of
    # P-EAGLE, which drafts in parallel and so is another method.
    architectures=(
        "Eagle3LlamaForCausalLM",
        "LlamaForCausalLMEagle3",
        "Eagle3MiniMaxM2ForCausalLM",
        "Eagle3Qwen2_5vlForCausalLM",
        "Eagle3Qwen3vlForCausalLM",
        "Eagle3Qwen3ForCausalLM",
    ),
    shape=_shape,
    speculators="eagle3",
)
