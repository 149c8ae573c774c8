"""Token rows for training: documents packed into rows of equal length, batch i a pure function of (seed, i)."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from hybrid_serve.demo.corpus import documents
from hybrid_serve.demo.tokenizer import load_tokenizer


class Batch(NamedTuple):
    """ids [rows, length] int64; scored [rows, length] bool, true where the token belongs to an answer."""

    ids: Tensor
    scored: Tensor


class Rows(Dataset[Batch]):
    """Batches of `tokens` tokens: three of four are rows of 2048, the fourth rows of 4096.

    Each row starts with a document, so position 0 is always the start of a text, as it is when serving; further
    documents follow until the row is full, and the last one is cut.
    """

    def __init__(self, *, seed: int, batches: int, tokens: int) -> None:
        self.seed, self.batches, self.tokens = seed, batches, tokens
        self.tokenizer = load_tokenizer()

    def __len__(self) -> int:
        return self.batches

    def __getitem__(self, index: int) -> Batch:
        length = 4096 if index % 4 == 3 else 2048
        stream = documents(self.seed + index)
        ids = torch.zeros(self.tokens // length, length, dtype=torch.int64)
        scored = torch.zeros_like(ids, dtype=torch.bool)
        for row in range(len(ids)):
            filled = 0
            while filled < length:
                for piece in next(stream):
                    tokens = self.tokenizer.encode(piece.text).ids[: length - filled]
                    ids[row, filled : filled + len(tokens)] = torch.tensor(tokens)
                    scored[row, filled : filled + len(tokens)] = piece.scored
                    filled += len(tokens)
        return Batch(ids, scored)


def loader(*, seed: int, batches: int, tokens: int, workers: int) -> DataLoader[Batch]:
    return DataLoader(Rows(seed=seed, batches=batches, tokens=tokens), batch_size=None, num_workers=workers)
