"""Small models with the features that matter: tables of several kinds beside dense layers."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class TwoTables(nn.Module):
    """A large and a small one-hot table and two linear layers."""

    def __init__(self, rows: int = 300, small: int = 7) -> None:
        super().__init__()
        self.large = nn.Embedding(rows, 5, sparse=True)
        self.small = nn.Embedding(small, 3, sparse=True)
        self.hidden = nn.Linear(8, 6)
        self.out = nn.Linear(6, 1)

    def forward(self, ids: Tensor) -> Tensor:
        joined = torch.cat([self.large(ids[:, 0]), self.small(ids[:, 1])], dim=1)
        return self.out(torch.tanh(self.hidden(joined))).squeeze(1)


class MultiHot(nn.Module):
    """Several ids an example in one table (repeats and padding likely), and a bag over another."""

    def __init__(self, rows: int = 40) -> None:
        super().__init__()
        self.words = nn.Embedding(rows, 4, sparse=True, padding_idx=0)
        self.tags = nn.EmbeddingBag(rows, 3, mode="mean", sparse=True)
        self.out = nn.Linear(7, 1)

    def forward(self, words: Tensor, tags: Tensor) -> Tensor:
        joined = torch.cat([torch.tanh(self.words(words)).sum(dim=1), self.tags(tags)], dim=1)
        return self.out(joined).squeeze(1)
