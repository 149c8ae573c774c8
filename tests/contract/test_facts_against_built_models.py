"""What the readers say of a config.json against the layers that the installed vLLM builds from it: order, kinds, bytes.

Small models of each family, K = 3, one GPU's worth.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hybrid_serve.facts.checkpoint import read_drafter, read_mtp, read_target
from hybrid_serve.facts.layers import DTYPE_BYTES, Layers, MambaLayers
from hybrid_serve.facts.model import DrafterFacts
from hybrid_serve.plan.buckets import bytes_per_token, state_bytes
from tests.contract import built_layers
from tests.unit.facts_checkpoints import qwen3_next, write_checkpoint
from tests.unit.family_configs import dspark, eagle3, falcon_h1, gpt_oss, granite_hybrid, nemotron_h, qwen3_dense

pytestmark = [pytest.mark.contract, pytest.mark.timeout(900)]
pytest.importorskip("vllm")

ROOT = Path(__file__).parents[2]
SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 256,
    "max_position_embeddings": 4096,
}
MAMBA_D = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16}
NEMOTRON = nemotron_h(
    **SMALL, head_dim=16, mamba_num_heads=8, mamba_head_dim=16, n_groups=2, ssm_state_size=16, num_hidden_layers=5
) | {"hybrid_override_pattern": "M-M*-"}
GRANITE = granite_hybrid(
    **SMALL, **MAMBA_D, num_hidden_layers=4, layer_types=["mamba", "mamba", "attention", "mamba"]
) | {"num_local_experts": 0, "shared_intermediate_size": 64}
FALCON = falcon_h1(**SMALL, **MAMBA_D, num_hidden_layers=3, head_dim=16, mamba_d_ssm=128)
GPT_OSS = gpt_oss(**SMALL, num_hidden_layers=3, head_dim=16, layer_types=None) | {
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
}
NEXT = qwen3_next(
    **SMALL,
    num_hidden_layers=4,
    head_dim=32,
    linear_num_key_heads=2,
    linear_num_value_heads=4,
    linear_key_head_dim=16,
    linear_value_head_dim=16,
) | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32}
EAGLE3 = eagle3(**SMALL, head_dim=32, draft_vocab_size=128)
QWEN3_EAGLE3 = EAGLE3 | {"architectures": ["Eagle3Qwen3ForCausalLM"], "model_type": "qwen3"}
DSPARK = dspark(**SMALL, num_hidden_layers=2, head_dim=32, mask_token_id=3, target_layer_ids=[0, 1], markov_rank=8)
DENSE = qwen3_dense(**SMALL, num_hidden_layers=3, head_dim=32)
LLAMA = DENSE | {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "head_dim": None}

CASES: dict[str, tuple[dict[str, Any], str | None, dict[str, Any] | None]] = {
    "nemotron-h": (NEMOTRON, None, None),
    "nemotron-h-attention-first": (NEMOTRON | {"hybrid_override_pattern": "*MM--"}, None, None),
    "granite-4-h": (GRANITE, None, None),
    "falcon-h1": (FALCON, None, None),
    "gpt-oss": (GPT_OSS, None, None),
    "eagle3": (NEMOTRON, "eagle3", EAGLE3),
    "eagle3-of-qwen3": (NEMOTRON, "eagle3", QWEN3_EAGLE3),
    "eagle3-of-gpt-oss": (GPT_OSS, "eagle3", EAGLE3),
    "dspark": (NEMOTRON, "dspark", DSPARK),
    "dense-qwen3": (NEMOTRON, "draft_model", DENSE),
    "dense-llama": (NEMOTRON, "draft_model", LLAMA),
    "mtp-of-qwen3-next": (NEXT, "mtp", None),
    "mtp-of-nemotron-h": (
        NEMOTRON | {"num_nextn_predict_layers": 1, "mtp_hybrid_override_pattern": "*"},
        "mtp",
        None,
    ),
}
K = 3


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """vLLM's layers of all cases, from one process."""
    folder = tmp_path_factory.mktemp("built")
    asked = []
    for name, (target, method, drafter) in CASES.items():
        case: dict[str, Any] = {"target": write_checkpoint(folder / name / "target", target), "speculative": None}
        if method is not None:
            case["speculative"] = {"method": method, "num_speculative_tokens": K}
        if drafter is not None:
            case["speculative"]["model"] = write_checkpoint(folder / name / "drafter", drafter)
        asked.append(case)
    command = [sys.executable, built_layers.__file__, str(folder / "rendezvous")]
    done = subprocess.run(command, cwd=ROOT, input=json.dumps(asked), capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stderr[-4000:]
    answers = json.loads(done.stdout.strip().splitlines()[-1])
    return {name: (case, answer) for name, case, answer in zip(CASES, asked, answers, strict=True)}


def expected(layers: Layers, k: int) -> list[tuple[tuple[str, int], int]]:
    """((vLLM's spec, bytes), layers) a bucket."""
    rows = []
    for bucket in layers.buckets:
        if isinstance(bucket, MambaLayers):
            size = state_bytes(bucket, tensor_parallel_size=1, num_speculative_tokens=k)
            rows.append((("MambaSpec", size), bucket.count))
        else:
            name = "FullAttentionSpec" if bucket.kind == "full" else "SlidingWindowSpec"
            rows.append(((name, bytes_per_token(bucket, tensor_parallel_size=1, dtype="bf16")), bucket.count))
    return rows


def counted(layers: list[tuple[str, int]]) -> list[tuple[tuple[str, int], int]]:
    """Alike layers together, in the order in which the first of each was registered."""
    counts: dict[tuple[str, int], int] = {}
    for kind, size in layers:
        counts[kind, size] = counts.get((kind, size), 0) + 1
    return list(counts.items())


@pytest.mark.parametrize("name", CASES)
def test_vllm_builds_the_layers_that_were_read(built: dict[str, Any], name: str) -> None:
    case, layers = built[name]
    method = CASES[name][1]
    target = read_target(case["target"], mamba_ssm_cache_dtype=built_layers.SSM_DTYPE)
    drafter: DrafterFacts | None = None
    if method is not None:
        model = case["speculative"].get("model")
        drafter = read_mtp(case["target"]) if model is None else read_drafter(model)
        assert drafter.method == method
    own = target.layers.count
    assert counted(layers[:own]) == expected(target.layers, K if drafter else 0)
    assert counted(layers[own:]) == (expected(drafter.layers, K) if drafter else [])
    assert DTYPE_BYTES[target.dtype] == 2
