"""Models that vLLM runs and this project does not plan for, with what is missing."""

MLA = "MLA layers, which keep one latent vector a token, whole on every GPU"
KDA = f"{MLA}, and KDA layers, whose states have a shape of their own"
LIGHTNING = f"{MLA}, and lightning-attention layers, whose states have a shape of their own"

NOT_PLANNED: dict[str, str] = {
    "KimiLinearForCausalLM": KDA,
    "KimiK3ForConditionalGeneration": KDA,
    "BailingMoeV2_5ForCausalLM": LIGHTNING,
    "BailingMoeV3ForCausalLM": KDA,
    "JambaForCausalLM": "mamba1 layers, whose states have a shape of their own",
    "Lfm2ForCausalLM": "short-convolution layers, whose states have a shape of their own",
    "Lfm2MoeForCausalLM": "short-convolution layers, whose states have a shape of their own",
    "Eagle3DeepseekV2ForCausalLM": MLA,
    "Eagle3DeepseekV3ForCausalLM": MLA,
    "K3DSparkModel": MLA,
}
"""By architecture, targets and drafters."""
