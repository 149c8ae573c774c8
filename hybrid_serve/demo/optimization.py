"""AdamW, its learning-rate schedule and the bfloat16 export, the same for the target and the drafter."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn


def adamw(model: nn.Module, lr: float, weight_decay: float = 0.05) -> torch.optim.AdamW:
    """Float32 master weights; embeddings, norms and other vectors are not decayed."""
    named = list(model.named_parameters())
    decayed = [p for name, p in named if p.dim() >= 2 and "embed" not in name]
    kept = [p for name, p in named if p.dim() < 2 or "embed" in name]
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": kept, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95), fused=True)


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Linear warm-up, then a cosine down to one hundredth of the peak, over `steps` or `seconds`, whatever ends first.

    A limit in seconds makes a run fit a machine that is there for a while only; the log says how many steps it made,
    and the same number as `steps` alone repeats it nearly.
    """

    peak: float
    steps: int
    seconds: float
    warmup: int = 100

    def done(self, step: int, elapsed: float) -> float:
        """Share of the run that is over, 1.0 or more at its end."""
        return max((step + 1) / self.steps, elapsed / self.seconds)

    def lr(self, step: int, elapsed: float) -> float:
        cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, self.done(step, elapsed))))
        return self.peak * min((step + 1) / self.warmup, 0.01 + 0.99 * cosine)


def update(model: nn.Module, optimizer: torch.optim.Optimizer, lr: float) -> None:
    """One step with clipped gradients, which are zeroed in place: a recorded CUDA graph writes to the same memory."""
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for group in optimizer.param_groups:
        group["lr"] = lr
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)


def save_checkpoint(model: nn.Module, config: dict[str, Any], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    state = model.state_dict()
    tensors = {name: value.to("cpu", torch.bfloat16).contiguous() for name, value in state.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
