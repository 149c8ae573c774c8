"""What each vLLM release does with a KV cache: differences between versions are data, not branches."""

from dataclasses import dataclass

DEFAULT_VLLM = "0.29.0"


@dataclass(frozen=True, kw_only=True)
class EngineCapabilities:
    """One vLLM release. Each field's source is a file of that release.

    Attributes:
        version: the release.
        cuda_kernel_block: FlashAttention's smallest kernel block in tokens
            (v1/attention/backends/flash_attn.py).
        cuda_default_block: block size where the user sets none (config/cache.py).
        fa4_kernel_block, fa4_head_dim, fa4_sms: FlashAttention 4's larger block and where it is used
            (the same file, _get_fa4_hd256_block_size).
        cpu_kernel_block: the CPU backend's (v1/attention/backends/cpu_attn.py).
        cpu_default_block: platforms/cpu.py, check_and_update_config.
        pads_attention_pages: attention pages that do not divide the largest page are padded; without it
            grouping asserts (v1/core/kv_cache_utils.py, unify_kv_cache_spec_page_size).
        block_outermost: layouts with blocks outermost exist (v1/kv_cache_layout.py).
        cpu_drafter_in_one_group: the CPU's V1 model runner wants all of a drafter's layers in one group
            (v1/spec_decode/llm_base_proposer.py, validate_same_kv_cache_group).
        v1_methods: speculative methods that run on the V1 model runner on CUDA too, with the same want
            (config/vllm.py, _get_v2_model_runner_unsupported_features).
        cpu_mamba_align: mamba cache mode `align` (prefix caching) with a drafter runs on a CPU. It starts and dies on
            the first request where its state copy is a Triton kernel (v1/worker/mamba_utils.py, run_fused_precopy).
        cpu_expands_only_integers: the CPU's rejection sampler gets uninitialised temperatures
            (utils/cpu_triton_utils.py, _expand_kernel_impl); see hybrid_serve.engine.patches.cpu_sampling.
        patch: module under hybrid_serve.engine.patches that applies a plan; None if none does.
    """

    version: str
    cuda_kernel_block: int = 16
    cuda_default_block: int = 16
    fa4_kernel_block: int = 128
    fa4_head_dim: int = 256
    fa4_sms: frozenset[int] = frozenset({100, 103})
    cpu_kernel_block: int = 32
    cpu_default_block: int = 128
    pads_attention_pages: bool = True
    block_outermost: bool = True
    cpu_drafter_in_one_group: bool = True
    v1_methods: frozenset[str] = frozenset({"draft_model"})
    cpu_mamba_align: bool = False
    cpu_expands_only_integers: bool = True
    patch: str | None = "kv_cache_utils"


CAPABILITIES: dict[str, EngineCapabilities] = {"0.29.0": EngineCapabilities(version="0.29.0")}


def capabilities(version: str) -> EngineCapabilities:
    """The capabilities of a vLLM release.

    Raises:
        ValueError: the release is not known; the message lists those that are.
    """
    try:
        return CAPABILITIES[version]
    except KeyError:
        known = ", ".join(sorted(CAPABILITIES))
        raise ValueError(f"vLLM {version} is not supported: supported are {known}") from None
