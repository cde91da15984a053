"""Examples of CBOW: a word, the words around it, and negatives that belong to the example alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from sparsedp.core.arrays import F64, I64, U64
from sparsedp.core.validation import check_count
from sparsedp.data.corpus import Corpus
from sparsedp.data.hashing import GAMMA, mix

if TYPE_CHECKING:
    from torch import Tensor

WINDOW, NEGATIVES = 4, 8
"""The WIDE paper's, section 6.1."""
_REDRAWS = 8


class ContextWindows:
    """A map-style data set with one example for every word of a corpus that has a neighbour in its sentence.

    An example is ``(context, candidates)``: up to ``window`` words on either side, padded with the id
    ``vocabulary_size``, and the word itself followed by ``negatives`` other words. Where
    it collates, ``__getitems__`` returns both as tensors for a whole batch.

    Negatives are drawn from a stream of the example's own: a function of its words, of ``seed`` and of ``round``, and of
    no other example. So adding or removing an example changes no other one, for every seed. ``weights`` is the law of
    the negatives (default: uniform); it must be public. A new ``round`` draws new negatives for all.
    """

    collates = True

    def __init__(
        self,
        corpus: Corpus,
        vocabulary_size: int,
        *,
        window: int = WINDOW,
        negatives: int = NEGATIVES,
        weights: ArrayLike | None = None,
        seed: int = 0,
    ) -> None:
        self.vocabulary_size = check_count("vocabulary_size", vocabulary_size, minimum=2)
        self.window = check_count("window", window)
        self.negatives = check_count("negatives", negatives)
        self.seed = check_count("seed", seed, minimum=0)
        self.round = 0
        """Which draw of negatives is handed out, from 0."""
        if corpus.ids.size and not 0 <= corpus.ids.min() <= corpus.ids.max() < self.vocabulary_size:
            raise ValueError(f"corpus: has ids beyond vocabulary_size = {vocabulary_size}")
        self._law = _cumulative(weights, self.vocabulary_size)
        self.contexts, self.targets = _windows(corpus, self.window, self.vocabulary_size)
        self._keys = _keys(self.contexts, self.targets, self.seed)

    @property
    def padding(self) -> int:
        """The id in place of a missing neighbour."""
        return self.vocabulary_size

    def __len__(self) -> int:
        return self.targets.size

    def draw_negatives(self, indices: ArrayLike) -> I64:
        """The negatives of some examples in this round, never the word itself: (examples, negatives)."""
        indices = np.asarray(indices, np.int64)
        targets = self.targets[indices, None]
        streams = self._keys[indices, None] + _step(self.round)
        counters = np.arange(self.negatives, dtype=np.uint64)
        drawn = self._words(streams, counters)
        for attempt in range(1, _REDRAWS + 1):
            repeats = drawn == targets
            if not repeats.any():
                break
            drawn = np.where(
                repeats, self._words(streams, counters + np.uint64(attempt * self.negatives)), drawn
            )
        return np.where(drawn == targets, (drawn + 1) % self.vocabulary_size, drawn)

    def _words(self, streams: U64, counters: U64) -> I64:
        uniform = mix(mix(streams) + GAMMA * counters) >> np.uint64(11)
        if self._law is None:
            return (uniform % np.uint64(self.vocabulary_size)).astype(np.int64)
        return np.searchsorted(self._law, uniform * 2.0**-53, side="right").astype(np.int64)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        context, candidates = self.__getitems__(np.array([index]))
        return context[0], candidates[0]

    def __getitems__(self, indices: ArrayLike) -> tuple[Tensor, Tensor]:
        """The examples at some indices as one batch: contexts (B, 2 window), candidates (B, 1 + negatives)."""
        import torch

        indices = np.asarray(indices, np.int64)
        candidates = np.concatenate([self.targets[indices, None], self.draw_negatives(indices)], axis=1)
        return torch.from_numpy(self.contexts[indices]), torch.from_numpy(candidates)

    def batches(self, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """All examples in order, for evaluation."""
        for start in range(0, len(self), check_count("size", size)):
            yield self.__getitems__(np.arange(start, min(start + size, len(self))))


def _cumulative(weights: ArrayLike | None, size: int) -> F64 | None:
    if weights is None:
        return None
    law = np.asarray(weights, np.float64)
    if law.shape != (size,) or not np.isfinite(law).all() or (law <= 0).any():
        raise ValueError(f"weights must be {size} positive numbers, one a word")
    total = np.cumsum(law)
    total /= total[-1]
    total[-1] = 1.0
    return total


def _windows(corpus: Corpus, window: int, padding: int) -> tuple[I64, I64]:
    """The contexts and targets of every word with a neighbour."""
    words = corpus.ids.size
    sentence = np.repeat(np.arange(len(corpus)), np.diff(corpus.offsets))
    contexts = np.full((words, 2 * window), padding, dtype=np.int64)
    shifts = [*range(-window, 0), *range(1, window + 1)]
    for column, shift in enumerate(shifts):
        at = np.arange(max(0, -shift), max(0, min(words, words - shift)))
        at = at[sentence[at] == sentence[at + shift]]
        contexts[at, column] = corpus.ids[at + shift]
    lonely = (contexts == padding).all(axis=1)
    return contexts[~lonely], corpus.ids[~lonely]


def _step(number: int) -> np.uint64:
    return np.uint64(int(GAMMA) * (number + 1) % 2**64)


def _keys(contexts: I64, targets: I64, seed: int) -> U64:
    """One key an example, from its words and the seed."""
    keys = mix(targets.astype(np.uint64) + _step(seed))
    for column in contexts.T:
        keys = mix(keys * GAMMA + column.astype(np.uint64))
    return keys
