"""Train the target: python -m hybrid_serve.demo.train_target --steps N

Next-token prediction on the synthetic corpus; answers count fully, given text one tenth. One GPU, or --device cpu
for a smoke test.
"""

import argparse
import math
import time
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from hybrid_serve.demo.corpus import held_out_prompts
from hybrid_serve.demo.geometry import DRAFT_DIR, TARGET_DIR, TargetGeometry
from hybrid_serve.demo.optimization import Schedule, adamw, save_checkpoint, update
from hybrid_serve.demo.rows import Batch, loader
from hybrid_serve.demo.target_model import Target
from hybrid_serve.demo.tokenizer import load_tokenizer, train_tokenizer, write_tokenizer

BALANCE_WEIGHT = 0.01
GIVEN_WEIGHT = 0.1


def loss_of(model: Target, batch: Batch) -> tuple[Tensor, Tensor]:
    """The loss to minimise, and the plain cross-entropy on answer tokens."""
    output = model(batch.ids)
    logits = model.lm_head(output.hidden[:, :-1]).float()
    losses = F.cross_entropy(logits.flatten(0, 1), batch.ids[:, 1:].flatten(), reduction="none")
    scored = batch.scored[:, 1:].flatten()
    weights = torch.where(scored, 1.0, GIVEN_WEIGHT)
    loss = (losses * weights).sum() / weights.sum() + BALANCE_WEIGHT * output.balance
    return loss, (losses.detach() * scored).sum() / scored.sum()


def gradients(model: Target, batch: Batch) -> tuple[Tensor, Tensor]:
    """Add this batch's gradients; returns what loss_of returns."""
    with torch.autocast(batch.ids.device.type, torch.bfloat16, cache_enabled=False):
        loss, answers = loss_of(model, batch)
    loss.backward()
    return loss.detach(), answers


class Recorded:
    """`gradients` for batches of one shape, as a CUDA graph: a step is some ten thousand kernels, each too short to
    be worth its launch."""

    def __init__(self, model: Target, example: Batch) -> None:
        self.batch = Batch(*(part.clone() for part in example))
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                gradients(model, self.batch)
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.result = gradients(model, self.batch)
        model.zero_grad(set_to_none=False)

    def __call__(self, batch: Batch) -> tuple[Tensor, Tensor]:
        for ours, given in zip(self.batch, batch, strict=True):
            ours.copy_(given)
        self.graph.replay()
        return self.result


@torch.no_grad()
def held_out_accuracy(model: Target, device: str, prompts: int = 280) -> dict[str, float]:
    """Per kind of exercise: share of answer tokens that are the model's first choice, given the answer so far."""
    tokenizer = load_tokenizer()
    right: dict[str, list[float]] = {}
    for prompt in held_out_prompts(prompts, seed=1):
        head = f"<|im_start|>user\n{prompt.messages[0]['content']}<|im_end|>\n<|im_start|>assistant\n"
        given, wanted = tokenizer.encode(head).ids, tokenizer.encode(f"{prompt.answer}<|im_end|>").ids
        ids = torch.tensor([given + wanted], device=device)
        padded = F.pad(ids, (0, -ids.shape[1] % 64))
        guess = model.lm_head(model(padded).hidden)[0, len(given) - 1 : len(given) + len(wanted) - 1].argmax(-1)
        right.setdefault(prompt.kind, []).append((guess == ids[0, len(given) :]).float().mean().item())
    return {kind: sum(shares) / len(shares) for kind, shares in right.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--seconds", type=float, default=math.inf, help="end after so long, if --steps do not end it")
    parser.add_argument("--tokens", type=int, default=65_536, help="tokens in one step")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=1_000_000, help="seed of the first batch's documents")
    parser.add_argument("--out", type=Path, default=TARGET_DIR)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--new-tokenizer", action="store_true", help="train the tokenizer again first, for both models")
    args = parser.parse_args()

    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    geometry = TargetGeometry()
    if args.new_tokenizer:
        tokenizer = train_tokenizer(geometry.vocab_size)
        for folder in (TARGET_DIR, DRAFT_DIR):
            write_tokenizer(tokenizer, folder, geometry.max_position_embeddings)
    model = Target(geometry).to(args.device)
    optimizer = adamw(model, args.lr)
    recorded: dict[torch.Size, Recorded] = {}
    schedule = Schedule(peak=args.lr, steps=args.steps, seconds=args.seconds)
    batches = loader(seed=args.seed, batches=args.steps, tokens=args.tokens, workers=args.workers)
    start = time.monotonic()
    for step, batch in enumerate(batches):
        moved = Batch(*(part.to(args.device) for part in batch))
        shape = moved.ids.shape
        if args.device == "cuda" and shape not in recorded:
            recorded[shape] = Recorded(model, moved)
        loss, answers = recorded[shape](moved) if shape in recorded else gradients(model, moved)
        elapsed = time.monotonic() - start
        update(model, optimizer, schedule.lr(step, elapsed))
        last = schedule.done(step, elapsed) >= 1
        if step % 50 == 0 or last:
            print(f"step {step} loss {loss.item():.4f} answers {answers.item():.4f} {elapsed:.1f} s", flush=True)
        if last:
            break
    save_checkpoint(model, geometry.config(), args.out)
    model.to(torch.bfloat16)
    for kind, share in held_out_accuracy(model, args.device).items():
        print(f"held out {kind}: {share:.4f}")


if __name__ == "__main__":
    main()
