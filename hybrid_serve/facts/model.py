"""What is known of a target and of a drafter before a weight is read."""

from dataclasses import dataclass

from hybrid_serve.facts.layers import Dtype, Layers


@dataclass(frozen=True, kw_only=True)
class Fingerprint:
    """Identity of a checkpoint. Two replicas may serve one model name only if both parts are equal.

    Attributes:
        geometry: sha256 (first 16 hex digits) over what decides the KV cache: layers, heads, dims, dtype.
        weights: sha256 (first 16 hex digits) over the hub's content hashes or, for a plain folder, over the
            safetensors headers, file sizes and a sample of the data; changes when a drafter is retrained in
            place. Empty if there are no weights (a folder with only a `config.json`).
    """

    geometry: str
    weights: str

    def __str__(self) -> str:
        return f"{self.geometry}/{self.weights or 'no-weights'}"


@dataclass(frozen=True, kw_only=True)
class TargetFacts:
    """A hybrid target.

    Attributes:
        source: the folder or hub id it was read from; `revision` the hub commit, None for a folder.
        family: `qwen3-next`, `qwen3.5`, `qwen3.5-moe`, ...
        dtype: of weights and, with `kv_dtype=auto`, of the KV cache.
        max_position_embeddings: longest context the model was made for.
        weights_bytes: tensor data of all safetensors files; None if there are none.
        kv_cache_dtype: `fp8` where a quantised checkpoint sets the KV cache's dtype itself; what `kv_dtype=auto`
            then means.
    """

    source: str
    revision: str | None
    family: str
    architecture: str
    hidden_size: int
    vocab_size: int
    num_layers: int
    max_position_embeddings: int
    dtype: Dtype
    layers: Layers
    weights_bytes: int | None
    fingerprint: Fingerprint
    kv_cache_dtype: Dtype | None = None


@dataclass(frozen=True, kw_only=True)
class DrafterFacts:
    """A drafter.

    Attributes:
        method: vLLM's `speculative_config.method`: `dflash`.
        block_size: 1 + the largest K (`num_speculative_tokens`) it was trained for.
        target_layer_ids: 0-based target layers whose outputs feed it.
        num_target_layers: of the target it was trained for; None if its config does not say.
        dtype: of the checkpoint; vLLM runs a drafter in its target's dtype.
    """

    source: str
    revision: str | None
    method: str
    architecture: str
    hidden_size: int
    target_hidden_size: int
    vocab_size: int
    block_size: int
    mask_token_id: int
    target_layer_ids: tuple[int, ...]
    num_target_layers: int | None
    max_position_embeddings: int
    dtype: Dtype
    layers: Layers
    weights_bytes: int | None
    fingerprint: Fingerprint

    @property
    def max_speculative_tokens(self) -> int:
        return self.block_size - 1
