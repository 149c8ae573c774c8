"""What a model family must answer about a config.json. One module per family; `families/__init__.py` lists them."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from hybrid_serve.facts.config import Config
from hybrid_serve.facts.layers import AttentionLayers, Dtype, Layers, MambaLayers
from hybrid_serve.facts.model import METHODS

Bucket = AttentionLayers | MambaLayers


def _hidden_layers(text: Config) -> int:
    return text.integer("num_hidden_layers")


@dataclass(frozen=True, kw_only=True)
class TargetFamily:
    """A family of hybrid targets.

    Attributes:
        name: as in `TargetFacts.family`.
        architectures: names in a config's `architectures`.
        text: the section that describes the language model.
        layers: buckets from that section, the model's dtype, and a `mamba_ssm_cache_dtype` the user asked for
            (None for vLLM's `auto`).
        depth: the number of decoder layers, which drafters count by; layers without a KV cache count too.
        mtp: layers of the MTP modules that the checkpoint carries, from that section; None where vLLM has none for this
            family.
        methods: as in `TargetFacts.methods`.
    """

    name: str
    architectures: tuple[str, ...]
    text: Callable[[Config], Config]
    layers: Callable[[Config, Dtype, Dtype | None], Layers]
    depth: Callable[[Config], int] = _hidden_layers
    mtp: Callable[[Config], "MTPModules"] | None = None
    methods: tuple[str, ...] = METHODS


@dataclass(frozen=True, kw_only=True)
class MTPModules:
    """MTP modules of a target: `count` tokens are predicted before the first module is used again."""

    count: int
    layers: Layers


@dataclass(frozen=True, kw_only=True)
class DrafterShape:
    """What a drafter's config says; the fields are those of `DrafterFacts`."""

    hidden_size: int
    target_hidden_size: int
    vocab_size: int
    max_position_embeddings: int
    layers: Layers
    block_size: int | None = None
    samples_anchor: bool = False
    mask_token_id: int | None = None
    target_layer_ids: tuple[int, ...] = ()
    num_target_layers: int | None = None


@dataclass(frozen=True, kw_only=True)
class DrafterMethod:
    """A drafting method.

    Attributes:
        name: vLLM's `speculative_config.method`.
        architectures: names in a config's `architectures`.
        shape: reads the config, in its own format or in that of `speculators`.
        speculators: the method's `speculators_model_type`; None if it has none.
    """

    name: str
    architectures: tuple[str, ...]
    shape: Callable[[Config], DrafterShape]
    speculators: str | None = None


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
