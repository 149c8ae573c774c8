"""The demo drafter with sliding layers: what they see in training, and what its config.json says."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from hybrid_serve.demo.draft_model import Drafter, within_window
from hybrid_serve.demo.geometry import DRAFT_DIR, DraftGeometry, TargetGeometry
from hybrid_serve.demo.optimization import save_checkpoint
from hybrid_serve.demo.rows import Batch
from hybrid_serve.demo.train_draft import choose_blocks, main
from hybrid_serve.facts.checkpoint import read_drafter
from hybrid_serve.facts.layers import AttentionLayers
from tests.unit.facts_checkpoints import write_checkpoint

WINDOWED = DraftGeometry(num_layers=3, sliding_window=256)


def drawn(mask: Tensor) -> list[str]:
    """A row per query, `x` where it sees the key."""
    return ["".join("x" if seen else "." for seen in row) for row in mask.tolist()]


def table(*rows: str) -> list[str]:
    return [row.replace(" ", "") for row in rows]


def test_a_sliding_layer_is_causal_in_the_block_and_counts_its_own_token_in_the_window() -> None:
    """Two blocks of an anchor and two masks, at 3 and at 5, in a row of 8 tokens; the second block has one mask."""
    positions = torch.tensor([[3, 4, 5, 5, 6, 7]])
    full = table(
        # context 0..7, then each block's queries
        "xxx..... xxx ...",
        "xxx..... xxx ...",
        "xxx..... xxx ...",
        "xxxxx... ... xx.",
        "xxxxx... ... xx.",
        "xxxxx... ... xx.",
    )
    visible = torch.tensor([[seen == "x" for seen in row] for row in full])[None, None]
    assert drawn(within_window(visible, positions, 3)[0, 0]) == table(
        ".xx..... x.. ...",  # at 3: 1, 2, itself
        "..x..... xx. ...",
        "........ xxx ...",  # at 5: no context is left, the anchor is two away
        "...xx... ... x..",
        "....x... ... xx.",
        "........ ... xx.",  # at 7, the mask that is absent: nobody sees it, itself included
    )


def test_of_the_blocks_that_training_draws_a_sliding_layer_hides_what_is_far_or_ahead() -> None:
    k, window, length = WINDOWED.num_speculative_tokens, 10, 64
    batch = Batch(torch.full((2, length), 9), torch.ones(2, length, dtype=torch.bool))
    blocks = choose_blocks(batch, 4, k, torch.Generator().manual_seed(0))
    narrowed = within_window(blocks.visible, blocks.positions, window)
    assert narrowed.shape == blocks.visible.shape
    for row in range(2):
        keys = [*range(length), *blocks.positions[row].tolist()]
        for query, at in enumerate(blocks.positions[row].tolist()):
            seen = blocks.visible[row, 0, query].tolist()
            expected = [full and 0 <= at - key < window for full, key in zip(seen, keys, strict=True)]
            assert narrowed[row, 0, query].tolist() == expected
            assert any(expected)  # an attention over nothing is NaN, and so would be the loss


def test_the_last_layer_alone_sees_beyond_the_window() -> None:
    """A change of far context reaches a block through the last layer, and not at all where its values are zeroed."""
    torch.manual_seed(0)
    g = DraftGeometry(num_layers=3, sliding_window=8)
    drafter = Drafter(g).eval()
    embedded, features = torch.randn(1, 8, 256), torch.randn(1, 64, 3 * 256)
    positions = torch.arange(40, 48)[None]
    visible = torch.cat([torch.arange(64) < 40, torch.ones(8, dtype=torch.bool)]).expand(1, 1, 8, -1)
    changed = features.clone()
    changed[:, :33] += 1.0  # the anchor at 40 sees 33 to 40
    with torch.no_grad():
        before, after = (drafter(embedded, part, positions, visible) for part in (features, changed))
        assert not torch.allclose(before, after)
        drafter.layers[-1].self_attn.o_proj.weight.zero_()
        before, after = (drafter(embedded, part, positions, visible) for part in (features, changed))
        assert torch.equal(before, after)


def test_the_config_names_the_sliding_layers_and_is_read_as_them(tmp_path: Path) -> None:
    config = WINDOWED.config(TargetGeometry())
    assert config["layer_types"] == ["sliding_attention", "sliding_attention", "full_attention"]
    assert (config["use_sliding_window"], config["sliding_window"], config["max_window_layers"]) == (True, 256, 3)
    facts = read_drafter(write_checkpoint(tmp_path, config))
    assert facts.layers.attention == (
        AttentionLayers(kind="sliding", count=2, kv_heads=2, head_dim=64, window=256),
        AttentionLayers(kind="full", count=1, kv_heads=2, head_dim=64, window=None),
    )


def test_the_shipped_drafter_is_still_what_the_geometry_says() -> None:
    config = DraftGeometry().config(TargetGeometry())
    assert json.dumps(config, indent=2) + "\n" == (DRAFT_DIR / "config.json").read_text()


def test_a_saved_drafter_has_the_weights_of_all_its_layers(tmp_path: Path) -> None:
    save_checkpoint(Drafter(WINDOWED), WINDOWED.config(TargetGeometry()), tmp_path)
    facts = read_drafter(str(tmp_path))
    assert (facts.layers.count, facts.weights_bytes) == (3, 2 * sum(p.numel() for p in Drafter(WINDOWED).parameters()))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--sliding-window", "7"], "give 8, the block's size, or more"),
        (["--layers", "1", "--sliding-window", "256"], "give 2 or more with a sliding window"),
        (["--layers", "0"], "give 1 or more without a sliding window"),
    ],
)
def test_a_drafter_that_cannot_be_is_refused_before_anything_is_loaded(
    options: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["train_draft", *options])
    with pytest.raises(SystemExit):
        main()
    assert said in capsys.readouterr().err


@pytest.mark.contract
def test_vllm_takes_the_sliding_layers_for_causal_ones_with_the_window(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("vllm")
    import vllm.model_executor.models.qwen3_dflash as qwen3_dflash
    from transformers import AutoConfig

    monkeypatch.setattr(qwen3_dflash, "get_current_vllm_config", lambda: SimpleNamespace(use_v2_model_runner=True))
    config = AutoConfig.from_pretrained(write_checkpoint(tmp_path, WINDOWED.config(TargetGeometry())))
    resolved = [qwen3_dflash._resolve_layer_attention(config, i) for i in range(3)]
    assert resolved == [(256, True), (256, True), (None, False)]


@pytest.mark.contract
@pytest.mark.parametrize("context", [5, 30, 300])
def test_vllms_cpu_kernel_sees_in_a_causal_window_what_the_training_shows(context: int) -> None:
    pytest.importorskip("vllm._C")
    if not hasattr(torch.ops._C, "cpu_attention_with_kv_cache"):
        pytest.skip("this vLLM is not built for a CPU")
    from vllm import _custom_ops as ops
    from vllm.v1.attention.backends.cpu_attn import _get_attn_isa

    torch.manual_seed(0)
    queries, window, size, tokens = 8, 12, 64, context + 8
    isa = _get_attn_isa(torch.bfloat16, 32, size)
    q, k, v = (torch.randn(n, 1, size, dtype=torch.bfloat16) for n in (queries, tokens, tokens))
    pages = -(-tokens // 32)
    keys, values = torch.zeros(pages, 1, 64, size, dtype=torch.bfloat16).chunk(2, dim=2)
    ops.cpu_attn_reshape_and_cache(k, v, keys, values, torch.arange(tokens), isa)
    starts, lengths = torch.tensor([0, queries], dtype=torch.int32), torch.tensor([tokens], dtype=torch.int32)
    plan = ops.cpu_attn_get_scheduler_metadata(
        1, 1, 1, size, lengths, torch.bfloat16, starts, causal=True, sliding_window_size=window, isa=isa,
        enable_kv_split=True,
    )  # fmt: skip
    theirs = torch.empty_like(q)
    ops.cpu_attention_with_kv_cache(
        query=q, key_cache=keys, value_cache=values, output=theirs, query_start_loc=starts, seq_lens=lengths,
        scale=size**-0.5, causal=True, alibi_slopes=None, sliding_window=window, softcap=0.0, s_aux=None,
        block_table=torch.arange(pages, dtype=torch.int32)[None], scheduler_metadata=plan,
    )  # fmt: skip

    positions = torch.arange(context, tokens)[None]
    visible = within_window(torch.ones(1, 1, queries, tokens, dtype=torch.bool), positions, window)
    heads = (part.float().transpose(0, 1)[None] for part in (q, k, v))
    ours = torch.nn.functional.scaled_dot_product_attention(*heads, attn_mask=visible)
    torch.testing.assert_close(theirs.float(), ours[0].transpose(0, 1), atol=0.02, rtol=0)
