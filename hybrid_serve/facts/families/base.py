"""What a model family must answer about a config.json. One module per family; `families/__init__.py` lists them."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from hybrid_serve.facts.config import Config
from hybrid_serve.facts.layers import AttentionLayers, Dtype, Layers, MambaLayers

Bucket = AttentionLayers | MambaLayers


@dataclass(frozen=True, kw_only=True)
class TargetFamily:
    """A family of hybrid targets.

    Attributes:
        name: as in `TargetFacts.family`.
        architectures: names in a config's `architectures`.
        text: the section that describes the language model.
        layers: buckets from that section, the model's dtype, and a `mamba_ssm_cache_dtype` the user asked for
            (None for vLLM's `auto`).
    """

    name: str
    architectures: tuple[str, ...]
    text: Callable[[Config], Config]
    layers: Callable[[Config, Dtype, Dtype | None], Layers]


@dataclass(frozen=True, kw_only=True)
class DrafterShape:
    """What a drafter's config says; the fields are those of `DrafterFacts`."""

    hidden_size: int
    target_hidden_size: int
    vocab_size: int
    block_size: int
    mask_token_id: int
    target_layer_ids: tuple[int, ...]
    num_target_layers: int | None
    max_position_embeddings: int
    layers: Layers


@dataclass(frozen=True, kw_only=True)
class DrafterMethod:
    """A drafting method. `name` is vLLM's `speculative_config.method`."""

    name: str
    architectures: tuple[str, ...]
    shape: Callable[[Config], DrafterShape]


def in_order(layers: Iterable[Bucket]) -> Layers:
    """Buckets of like layers, in the order in which the first of each appears: the order vLLM registers them in.

    Every item stands for `count` layers, usually one.
    """
    counts: dict[Bucket, int] = {}
    for layer in layers:
        alike = replace(layer, count=1)
        counts[alike] = counts.get(alike, 0) + layer.count
    return Layers(buckets=tuple(replace(layer, count=count) for layer, count in counts.items()))


def longest_context(text: Config) -> int:
    """`max_position_embeddings`, stretched where the config asks for YaRN.

    vLLM (config/model.py, _get_and_verify_max_len) takes `original_max_position_embeddings * factor` then.
    """
    longest = text.integer("max_position_embeddings")
    for name in ("rope_parameters", "rope_scaling"):
        rope = text.section(name).values
        factor, original = rope.get("factor"), rope.get("original_max_position_embeddings", longest)
        if "yarn" in (rope.get("rope_type"), rope.get("type")) and isinstance(factor, int | float):
            return int(original * factor)
    return longest
