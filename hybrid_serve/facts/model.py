"""What is known of a target and of a drafter before a weight is read."""

from dataclasses import dataclass

from hybrid_serve.facts.layers import Dtype, Layers

METHODS = ("dflash", "eagle3", "mtp", "dspark", "draft_model")
"""Drafting methods that can be read, by vLLM's names."""


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
        family: `qwen3-next`, `qwen3.5`, `qwen3.5-moe`, `nemotron-h`, ...
        num_layers: decoder layers, with or without a KV cache. Not `layers.count`: a layer may hold both attention and
            mamba2, or neither.
        dtype: of weights and, with `kv_dtype=auto`, of the KV cache.
        max_position_embeddings: longest context the model was made for.
        weights_bytes: tensor data of all safetensors files; None if there are none.
        kv_cache_dtype: `fp8` where a quantised checkpoint sets the KV cache's dtype itself; what `kv_dtype=auto`
            then means.
        methods: drafting methods that are planned with this family.
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
    methods: tuple[str, ...] = METHODS


@dataclass(frozen=True, kw_only=True)
class DrafterFacts:
    """A drafter.

    Attributes:
        source: the folder or hub id it was read from; the target's for its own MTP modules.
        method: vLLM's `speculative_config.method`, one of METHODS.
        hidden_size, vocab_size: of the drafter itself.
        target_hidden_size: of the hidden states it is fed; its own hidden size where it is fed none (`draft_model`).
        block_size: of DFlash and DSpark: 1 + the largest K (`num_speculative_tokens`) it was trained for.
        samples_anchor: of DSpark: the anchor's position drafts too, so the largest K is block_size.
        mask_token_id: of DFlash and DSpark.
        target_layer_ids: 0-based target layers whose outputs feed it; -1 is the embedding. Empty if it is fed none, or
            (EAGLE-3) if the target decides.
        num_target_layers: of the target it was trained for; None if its config does not say.
        mtp_modules: of MTP: how many predict in turn.
        dtype: of the checkpoint; vLLM runs a drafter in its target's dtype.
        weights_bytes: as of a target; 0 for MTP modules, which are counted there.
    """

    source: str
    revision: str | None
    method: str
    architecture: str
    hidden_size: int
    target_hidden_size: int
    vocab_size: int
    block_size: int | None = None
    samples_anchor: bool = False
    mask_token_id: int | None = None
    target_layer_ids: tuple[int, ...] = ()
    num_target_layers: int | None = None
    mtp_modules: int | None = None
    max_position_embeddings: int
    dtype: Dtype
    layers: Layers
    weights_bytes: int | None
    fingerprint: Fingerprint

    @property
    def max_speculative_tokens(self) -> int | None:
        """The largest K it was trained for; None without a bound."""
        if self.block_size is None:
            return None
        return self.block_size if self.samples_anchor else self.block_size - 1

    @property
    def default_speculative_tokens(self) -> int | None:
        """K where the user gives none: the largest, or one token a MTP module; None if there is no such number."""
        return self.max_speculative_tokens or self.mtp_modules
