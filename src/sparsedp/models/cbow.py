"""CBOW word2vec with negative sampling (WIDE, section 6.1), and what a person can look up in it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn
from torch.nn import functional

from sparsedp.core.arrays import F64, I64
from sparsedp.models.layers import check_sizes

DIM = 100
"""The WIDE paper's width of a word."""
_FAST_VOCABULARY = 4096
"""Up to this size, log-perplexities of three words come from tables of all pairs."""


class CBOW(nn.Module):
    """The mean of the context's rows in one table, scored against the rows of candidate words in another.

    Both tables are sparse lookups, and an example reads only rows of its own words: its gradient does not depend on
    other examples. Row ``vocabulary_size`` of the context table is the padding: it has no gradient and no count, and noise on it
    moves no mean.

    ``score_offset`` is a public constant in every score; ``-log(negatives)`` lets a model that knows nothing predict the
    base rate, so that no noise is spent on learning it. The paper has 0.
    """

    def __init__(self, vocabulary_size: int, dim: int = DIM, *, score_offset: float = 0.0) -> None:
        super().__init__()
        check_sizes("vocabulary_size, dim", [vocabulary_size, dim])
        self.vocabulary_size, self.score_offset = vocabulary_size, score_offset
        self.context = nn.EmbeddingBag(
            vocabulary_size + 1, dim, mode="mean", padding_idx=vocabulary_size, sparse=True
        )
        self.output = nn.Embedding(vocabulary_size, dim, sparse=True)
        # As in word2vec: words begin alike, so that the first scores say nothing.
        nn.init.uniform_(self.context.weight, -0.5, 0.5)
        with torch.no_grad():
            self.context.weight *= 1 / math.sqrt(dim)
            self.context.weight[vocabulary_size] = 0
        nn.init.zeros_(self.output.weight)

    def forward(self, context: Tensor, candidates: Tensor) -> Tensor:
        """The score of every candidate, (B, candidates), from contexts (B, words), padded."""
        scores: Tensor = torch.einsum("bd,bcd->bc", self.context(context), self.output(candidates))
        return scores + self.score_offset

    @torch.no_grad()
    def log_probabilities(self, context: Tensor) -> Tensor:
        """The log-probability of every word given each context: a softmax over the whole vocabulary."""
        return functional.log_softmax(self.context(context) @ self.output.weight.T, dim=1)

    def log_perplexity(self, phrases: ArrayLike) -> F64:
        """``-sum_t log Pr(c_t | c_0 ... c_(t-1))`` of each phrase, from its second word on (WIDE, section 6.5)."""
        ids = np.asarray(phrases, np.int64)
        if ids.ndim != 2 or ids.shape[1] < 2:
            raise ValueError(f"phrases must have shape (phrases, two words or more), got {ids.shape}")
        if ids.shape[1] == 3 and self.vocabulary_size <= _FAST_VOCABULARY < ids.shape[0]:
            return self._of_three(ids)
        total = np.zeros(len(ids))
        for start in range(0, len(ids), 1024):
            part = torch.from_numpy(ids[start : start + 1024])
            for t in range(1, part.shape[1]):
                found = self.log_probabilities(part[:, :t]).gather(1, part[:, t : t + 1])
                total[start : start + len(part)] -= found[:, 0].double().numpy()
        return total

    @torch.no_grad()
    def _of_three(self, ids: I64) -> F64:
        """The same by tables: a context of two words has half of the sum of both words' scores."""
        scores = (self.context.weight[: self.vocabulary_size] @ self.output.weight.T).double()
        one = torch.logsumexp(scores, 1)
        half = scores / 2
        largest = half.max(dim=1).values
        weights = torch.exp(half - largest[:, None])
        two = torch.log(weights @ weights.T) + largest[:, None] + largest[None, :]
        # Where the likely followers of two words are far apart, every product underflows.
        for row in (two == -math.inf).any(dim=1).nonzero()[:, 0].tolist():
            two[row] = torch.logsumexp(half[row] + half, dim=1)
        first, second, third = torch.from_numpy(ids).T
        second_given = scores[first, second] - one[first]
        third_given = half[first, third] + half[second, third] - two[first, second]
        return np.asarray((-second_given - third_given).numpy())

    def word_vectors(self, words: Sequence[str]) -> WordVectors:
        """The context table with the words of its rows."""
        if len(words) != self.vocabulary_size:
            raise ValueError(f"words must be one a row, got {len(words)} for {self.vocabulary_size} rows")
        return WordVectors(tuple(words), self.context.weight.detach()[: self.vocabulary_size].clone())


def negative_sampling_loss(scores: Tensor) -> Tensor:
    """Per example ``-log s(score of the word) - sum log s(-score of a negative)``; the word comes first."""
    return -functional.logsigmoid(scores[:, 0]) - functional.logsigmoid(-scores[:, 1:]).sum(1)


@dataclass(frozen=True, eq=False)
class WordVectors:
    """A row for each word, and look-ups by cosine."""

    words: tuple[str, ...]
    vectors: Tensor

    @cached_property
    def _row(self) -> dict[str, int]:
        return {word: n for n, word in enumerate(self.words)}

    @cached_property
    def _directions(self) -> Tensor:
        return functional.normalize(self.vectors, dim=1)

    def nearest(self, word: str, k: int = 10) -> list[tuple[str, float]]:
        """The ``k`` other words with the largest cosine to ``word``."""
        return self._closest(self._directions[self._id(word)], [word], k)

    def analogy(self, a: str, b: str, c: str, k: int = 10) -> list[tuple[str, float]]:
        """``a`` is to ``b`` as ``c`` is to: the words closest to ``b - a + c``, without these three."""
        direction = (
            self._directions[self._id(b)] - self._directions[self._id(a)] + self._directions[self._id(c)]
        )
        return self._closest(functional.normalize(direction, dim=0), [a, b, c], k)

    def _id(self, word: str) -> int:
        if word not in self._row:
            raise ValueError(f"word: {word!r} is not among the {len(self.words):,} words")
        return self._row[word]

    def _closest(self, direction: Tensor, but: list[str], k: int) -> list[tuple[str, float]]:
        cosines = self._directions @ direction
        cosines[[self._row[word] for word in but]] = -math.inf
        found = torch.topk(cosines, min(k, len(self.words) - len(set(but))))
        return [
            (self.words[n], cosine)
            for n, cosine in zip(found.indices.tolist(), found.values.tolist(), strict=True)
        ]
