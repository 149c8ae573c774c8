"""Train the drafter against the frozen target: python -m hybrid_serve.demo.train_draft --steps N

The target runs in bfloat16, as it is served. From its hidden states the drafter learns to give, at each mask
position, the distribution that the target gives there when it reads the true text.
"""

import argparse
import math
import time
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional as F

from hybrid_serve.demo.draft_model import Drafter
from hybrid_serve.demo.geometry import DRAFT_DIR, END_OF_TEXT, IM_END, MASK, TARGET_DIR, DraftGeometry, TargetGeometry
from hybrid_serve.demo.optimization import Schedule, adamw, save_checkpoint, update
from hybrid_serve.demo.rows import Batch, loader
from hybrid_serve.demo.target_model import Target

GIVEN_SHARE = 0.02  # how likely an anchor in given text is, against one in an answer
SHORT_SHARE = 0.25  # blocks trained with fewer than K masks, so that a smaller K can be served too
NEARNESS = 4.0  # the weight of the j-th drafted token is exp(-(j - 1) / NEARNESS)


class Blocks(NamedTuple):
    """A anchors per row and the blocks of 1 + K tokens that start there."""

    queries: Tensor  # [B, A * (1 + K)] ids: the anchor token, then masks
    positions: Tensor  # [B, A * (1 + K)]
    visible: Tensor  # [B, 1, A * (1 + K), T + A * (1 + K)] bool, to full layers
    weights: Tensor  # [B, A, K] of the loss at each mask position


def choose_blocks(batch: Batch, anchors: int, k: int, generator: torch.Generator) -> Blocks:
    """Draw anchors, mostly inside answers; what follows the end of an answer has weight 0."""
    ids, device = batch.ids, batch.ids.device
    rows, length = ids.shape
    ended = (ids == IM_END) | (ids == END_OF_TEXT)
    likely = torch.where(batch.scored & ~ended, 1.0, GIVEN_SHARE)
    likely[:, 0] = likely[:, length - k :] = 0.0
    anchor = torch.multinomial(likely, anchors, replacement=True, generator=generator)  # [B, A]
    positions = anchor.unsqueeze(-1) + torch.arange(k + 1, device=device)  # [B, A, 1 + K]

    masks = torch.full((rows, anchors), k, device=device)
    fewer = torch.randint(1, k + 1, (rows, anchors), device=device, generator=generator)
    short = torch.rand(rows, anchors, device=device, generator=generator) < SHORT_SHARE
    present = torch.arange(k + 1, device=device) <= torch.where(short, fewer, masks).unsqueeze(-1)  # [B, A, 1 + K]

    over = ended.gather(1, positions.flatten(1)).view_as(positions).cumsum(-1)[..., :-1] > 0
    nearness = torch.exp(-torch.arange(k, device=device) / NEARNESS)
    weights = nearness * present[..., 1:] * ~over

    before = torch.arange(length, device=device) < anchor.unsqueeze(-1)  # [B, A, T]
    before = before.repeat_interleave(k + 1, dim=1)
    block = torch.arange(anchors, device=device).repeat_interleave(k + 1)
    together = (block[:, None] == block[None, :]) & present.flatten(1).unsqueeze(1)
    visible = torch.cat([before, together], dim=-1).unsqueeze(1)
    queries = torch.full_like(positions, MASK)
    queries[..., 0] = ids.gather(1, anchor)
    return Blocks(queries.flatten(1), positions.flatten(1), visible, weights)


def loss_of(
    drafter: Drafter, target: Target, batch: Batch, anchors: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """The loss, and the mean number of tokens a step would yield: 1 + the drafted tokens that are the target's own."""
    k = drafter.g.num_speculative_tokens
    with torch.no_grad():
        output = target(batch.ids)
        features = torch.cat([output.after_layer[i] for i in drafter.g.target_layer_ids], dim=-1)
        blocks = choose_blocks(batch, anchors, k, generator)
        at = blocks.positions.view(len(batch.ids), anchors, k + 1)[..., :-1].flatten(1)  # the token before each mask
        hidden = output.hidden.gather(1, at.unsqueeze(-1).expand(-1, -1, output.hidden.shape[-1]))
        teacher = target.lm_head(hidden).float()  # [B, A * K, vocab]
        embedded = target.model.embed_tokens(blocks.queries)
    with torch.autocast(batch.ids.device.type, torch.bfloat16):
        drafted = drafter(embedded, features, blocks.positions, blocks.visible)
        drafted = drafted.unflatten(1, (anchors, k + 1))[:, :, 1:].flatten(1, 2)
        logits = F.linear(drafted, target.lm_head.weight)
    losses = -(teacher.softmax(-1) * logits.float().log_softmax(-1)).sum(-1).view_as(blocks.weights)
    loss = (losses * blocks.weights).sum() / blocks.weights.sum()
    same = (logits.argmax(-1) == teacher.argmax(-1)).view_as(blocks.weights) & (blocks.weights > 0)
    whole = (blocks.weights > 0).all(-1)
    accepted = same.cumprod(-1).sum(-1)
    return loss, 1 + (accepted * whole).sum() / whole.sum()


def load_target(folder: Path, device: str) -> Target:
    target = Target(TargetGeometry())
    target.load_state_dict(load_file(folder / "model.safetensors"))
    return target.to(device, torch.bfloat16).requires_grad_(False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--seconds", type=float, default=math.inf, help="end after so long, if --steps do not end it")
    parser.add_argument("--tokens", type=int, default=65_536, help="tokens in one step, read by the target")
    parser.add_argument("--anchors", type=int, default=64, help="blocks per 2,048 tokens")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--layers", type=int, default=DraftGeometry.num_layers)
    parser.add_argument(
        "--sliding-window", type=int, help="tokens that every layer but the last sees; without it, all are full"
    )
    parser.add_argument("--seed", type=int, default=2_000_000, help="seed of the first batch's documents")
    parser.add_argument("--target", type=Path, default=TARGET_DIR)
    parser.add_argument("--out", type=Path, default=DRAFT_DIR)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--workers", type=int, default=8)
    args = parser.parse_args()
    try:
        geometry = DraftGeometry(num_layers=args.layers, sliding_window=args.sliding_window)
    except ValueError as wrong:
        parser.error(str(wrong))

    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    generator = torch.Generator(args.device).manual_seed(0)
    target = load_target(args.target, args.device)
    drafter = Drafter(geometry).to(args.device)
    optimizer = adamw(drafter, args.lr)
    schedule = Schedule(peak=args.lr, steps=args.steps, seconds=args.seconds)
    batches = loader(seed=args.seed, batches=args.steps, tokens=args.tokens, workers=args.workers)
    start = time.monotonic()
    for step, batch in enumerate(batches):
        moved = Batch(*(part.to(args.device) for part in batch))
        anchors = args.anchors * moved.ids.shape[1] // 2048
        loss, per_step = loss_of(drafter, target, moved, anchors, generator)
        loss.backward()
        elapsed = time.monotonic() - start
        update(drafter, optimizer, schedule.lr(step, elapsed))
        last = schedule.done(step, elapsed) >= 1
        if step % 50 == 0 or last:
            print(f"step {step} loss {loss.item():.4f} tokens/step {per_step.item():.3f} {elapsed:.1f} s", flush=True)
        if last:
            break
    save_checkpoint(drafter, drafter.g.config(target.g), args.out)


if __name__ == "__main__":
    main()
