"""Canaries: what a model memorised of phrases or rows that were put into its training data on purpose.

Carlini et al. 2019, *The Secret Sharer*; WIDE, section 6.5. Draw canaries at random, insert ``copies`` of each, train, and
rank each canary among random references that were never inserted. If the model is independent of the canaries, ranks
are uniform; a model that memorised them puts them first.

This measures memorisation of these canaries by this model. Ranks that are far from uniform show that it memorised.
Ranks that look uniform show nothing more than that this test did not see it: they give no upper bound on epsilon.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from sparsedp.core.arrays import F64, I64
from sparsedp.core.validation import check_count

if TYPE_CHECKING:
    from torch import Tensor

LogPerplexity = Callable[[I64], ArrayLike]
"""(phrases, length) word ids -> one log-perplexity a phrase."""
RowLoss = Callable[[I64], ArrayLike]
"""(rows, features) ids of examples -> the loss of each."""

REFERENCES = 10_000
"""Random phrases that each canary is ranked among, as in the WIDE paper."""
BINS = 10
"""Of the histogram that the chi-square test compares with a flat one. The WIDE paper's published p-values are those of 10."""
_LEAST_PER_BIN = 5
_PHRASES_AT_ONCE = 2**20


@dataclass(frozen=True)
class ChiSquare:
    """Pearson's test of ranks against the uniform law."""

    statistic: float
    canaries: int
    bins: int

    @property
    def distance(self) -> float:
        """The statistic over the number of canaries, which the WIDE paper prints."""
        return self.statistic / self.canaries

    @property
    def p_value(self) -> float:
        """How likely uniform ranks give a statistic at least as large. A large one is no evidence of privacy."""
        return float(stats.chi2.sf(self.statistic, self.bins - 1))


@dataclass(frozen=True, eq=False)
class CanaryRanks:
    """The rank of each canary among itself and its references: 1 is the likeliest, ``references + 1`` the last."""

    ranks: I64
    references: int

    @classmethod
    def of(cls, scores: ArrayLike, reference_scores: ArrayLike, *, seed: int) -> CanaryRanks:
        """Rank scores (canaries,), small meaning memorised, among those of their references (canaries, references).

        Ties fall at random: where canary and references are drawn alike and the model knows neither, ranks are exactly
        uniform. A score that is not a number ranks last.
        """
        own, others = np.asarray(scores, np.float64), np.asarray(reference_scores, np.float64)
        if own.ndim != 1 or others.ndim != 2 or len(others) != len(own) or not others.size:
            raise ValueError(
                "reference_scores must have shape (canaries, references), "
                f"got {others.shape} for {own.shape} scores"
            )
        own, others = np.nan_to_num(own, nan=np.inf), np.nan_to_num(others, nan=np.inf)
        below = np.count_nonzero(others < own[:, None], axis=1)
        ties = np.count_nonzero(others == own[:, None], axis=1)
        return cls(1 + below + np.random.default_rng(seed).integers(0, ties, endpoint=True), others.shape[1])

    @property
    def exposure(self) -> F64:
        """``log2(references + 1) - log2(rank)`` of each canary, in bits; 1.44 on average if ranks are uniform."""
        return np.asarray(np.log2(self.references + 1) - np.log2(self.ranks))

    def histogram(self, bins: int = BINS) -> I64:
        """How many canaries have a rank in each of ``bins`` equal parts, the likeliest first."""
        found: I64 = np.histogram(self.ranks, self._edges(bins))[0].astype(np.int64)
        return found

    def chi_square(self, bins: int = BINS) -> ChiSquare:
        """Compare the histogram with the uniform law. Refuses fewer than five canaries a bin."""
        if self.ranks.size < _LEAST_PER_BIN * check_count("bins", bins, minimum=2):
            raise ValueError(
                f"bins: a chi-square test needs {_LEAST_PER_BIN} canaries a bin; there are {self.ranks.size} for "
                f"{bins} bins"
            )
        expected = self.ranks.size * np.diff(self._edges(bins)) / (self.references + 1)
        statistic = float(((self.histogram(bins) - expected) ** 2 / expected).sum())
        return ChiSquare(statistic, self.ranks.size, bins)

    def _edges(self, bins: int) -> F64:
        """Bounds between ranks; parts differ by at most one rank."""
        if check_count("bins", bins) > self.references + 1:
            raise ValueError(f"bins must be at most {self.references + 1}, the number of ranks, got {bins}")
        return np.linspace(0, self.references + 1, bins + 1).round() + 0.5


def random_phrases(count: int, vocabulary_size: int, *, length: int = 3, seed: int) -> I64:
    """Phrases of different words, each word uniform over the vocabulary: (count, length)."""
    count, length = check_count("count", count), check_count("length", length, minimum=2)
    check_count("vocabulary_size", vocabulary_size, minimum=length + 1)
    first = np.random.default_rng(seed).integers(0, vocabulary_size, size=(count, 1))
    return _completed(first, length, vocabulary_size, np.random.default_rng([seed, 1]))


def insert_phrases(sentences: Sequence[I64], phrases: I64, copies: int, *, seed: int) -> list[I64]:
    """The sentences with ``copies`` of every phrase among them at random places, each as a sentence of its own.

    No other sentence changes, so that a phrase adds exactly ``copies`` sentences to the data set.
    """
    added = [phrase for phrase in np.asarray(phrases, np.int64) for _ in range(check_count("copies", copies))]
    total = len(sentences) + len(added)
    rng = np.random.default_rng(seed)
    places = np.sort(rng.choice(total, size=len(added), replace=False))
    rng.shuffle(added)
    is_added = np.zeros(total, dtype=np.bool_)
    is_added[places] = True
    old, new = iter(sentences), iter(added)
    return [next(new) if inserted else next(old) for inserted in is_added]


def rank_phrases(
    log_perplexity: LogPerplexity,
    phrases: I64,
    vocabulary_size: int,
    *,
    references: int = REFERENCES,
    seed: int,
) -> CanaryRanks:
    """Rank each phrase by log-perplexity among random ones with the same first word (WIDE, section 6.5).

    Guarantee: if the model is independent of the phrases, and they come from ``random_phrases``, then the ranks are
    independent and uniform on 1 ... references + 1. The paper's printed inequality counts the phrases that are
    *likelier*, as here, although it calls a memorised canary's rank high.
    """
    phrases = np.asarray(phrases, np.int64)
    references, rng = check_count("references", references), np.random.default_rng([seed, 2])
    length = phrases.shape[1]
    scores, others = [np.empty(0)], [np.empty((0, references))]
    for part in _parts(phrases, max(1, _PHRASES_AT_ONCE // references)):
        drawn = _completed(np.repeat(part[:, :1], references, axis=0), length, vocabulary_size, rng)
        found = np.asarray(log_perplexity(np.concatenate([part, drawn])), np.float64)
        scores.append(found[: len(part)])
        others.append(found[len(part) :].reshape(len(part), references))
    return CanaryRanks.of(np.concatenate(scores), np.concatenate(others), seed=seed)


def language_model_log_perplexity(
    model: Callable[[Tensor], Any], *, physical_batch_size: int = 1024
) -> LogPerplexity:
    """``-sum_t log Pr(c_t | c_0 ... c_(t-1))`` from the second word on, of a causal language model.

    ``model(ids)`` returns logits (phrases, words, vocabulary), or an object that has them as ``logits`` (Hugging Face).
    """
    import torch

    @torch.no_grad()
    def log_perplexity(phrases: I64) -> F64:
        was_training = getattr(model, "training", False)
        if isinstance(model, torch.nn.Module):
            model.eval()
        total = []
        for part in _parts(
            np.asarray(phrases, np.int64), check_count("physical_batch_size", physical_batch_size)
        ):
            ids = torch.from_numpy(part)
            output = model(ids)
            logits = getattr(output, "logits", output)[:, :-1].double()
            log_probabilities = torch.log_softmax(logits, dim=-1)
            total.append(-log_probabilities.gather(2, ids[:, 1:, None]).sum((1, 2)).numpy())
        if isinstance(model, torch.nn.Module):
            model.train(was_training)
        return np.concatenate(total)

    return log_perplexity


@dataclass(frozen=True, eq=False)
class RareIds:
    """Canaries for click models: ids of one table that no example has, and for each the ids to rank it among."""

    canaries: I64
    references: I64
    """(canaries, references): different ids for every canary, so that the ranks are independent."""

    @classmethod
    def choose(cls, unused: ArrayLike, canaries: int, references: int, *, seed: int) -> RareIds:
        """Choose at random among ids that the training data does not have."""
        ids = np.unique(np.asarray(unused, np.int64))
        needed = check_count("canaries", canaries) * (check_count("references", references) + 1)
        if ids.size < needed:
            raise ValueError(
                f"unused: {canaries} canaries with {references} references each need {needed:,} ids, got {ids.size:,}"
            )
        chosen = np.random.default_rng(seed).permutation(ids)[:needed].reshape(canaries, references + 1)
        return cls(chosen[:, 0], chosen[:, 1:])

    def rows(self, templates: ArrayLike, column: int) -> I64:
        """The canaries as examples: each template row with a canary's id in ``column``. Insert copies of these."""
        rows = np.array(templates, dtype=np.int64)
        if rows.ndim != 2 or len(rows) != self.canaries.size:
            raise ValueError(
                f"templates must be one row a canary, got {rows.shape} for {self.canaries.size} canaries"
            )
        rows[:, column] = self.canaries
        return rows

    def rank(self, loss: RowLoss, templates: ArrayLike, column: int, *, seed: int) -> CanaryRanks:
        """Rank each canary by the model's loss on it, among the same row with each of its reference ids.

        Guarantee: if the model is independent of which ids were chosen, ranks are independent and uniform.
        """
        rows = self.rows(templates, column)
        others = np.repeat(rows, self.references.shape[1], axis=0)
        others[:, column] = self.references.ravel()
        found = np.asarray(loss(np.concatenate([rows, others])), np.float64)
        own, rest = found[: len(rows)], found[len(rows) :]
        return CanaryRanks.of(own, rest.reshape(self.references.shape), seed=seed)


def _parts(rows: I64, size: int) -> Iterator[I64]:
    return (rows[start : start + size] for start in range(0, len(rows), size))


def _completed(first: I64, length: int, vocabulary_size: int, rng: np.random.Generator) -> I64:
    """Phrases that begin with the words ``first`` (n, 1); the others are uniform and different from those before."""
    phrases = first
    for have in range(1, length):
        # A uniform word among those left: its number, moved past the words that are taken, smallest first.
        word = rng.integers(0, vocabulary_size - have, size=len(first))
        for taken in np.sort(phrases, axis=1).T:
            word += word >= taken
        phrases = np.concatenate([phrases, word[:, None]], axis=1)
    return phrases
