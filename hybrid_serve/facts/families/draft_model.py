"""Small dense models that draft by themselves (vLLM's method `draft_model`): nothing of the target feeds them."""

from hybrid_serve.facts.config import Config
from hybrid_serve.facts.families.attention import SLIDING, head_dim, kv_heads, layer_types, sliding_window
from hybrid_serve.facts.families.base import DrafterMethod, DrafterShape, longest_context
from hybrid_serve.facts.layers import AttentionLayers, Layers


def _shape(config: Config) -> DrafterShape:
    types = layer_types(config)
    if types is not None and SLIDING in types and sliding_window(config) is not None:
        raise config.wrong("sliding_window", "no sliding layers in a dense drafter: only full attention is planned")
    hidden_size = config.integer("hidden_size")
    layers = AttentionLayers(
        kind="full", count=config.integer("num_hidden_layers"), kv_heads=kv_heads(config), head_dim=head_dim(config)
    )
    return DrafterShape(
        hidden_size=hidden_size,
        target_hidden_size=hidden_size,
        vocab_size=config.integer("vocab_size"),
        max_position_embeddings=longest_context(config),
        layers=Layers(buckets=(layers,)),
    )


DRAFT_MODEL = DrafterMethod(name="draft_model", architectures=("Qwen3ForCausalLM", "LlamaForCausalLM"), shape=_shape)
