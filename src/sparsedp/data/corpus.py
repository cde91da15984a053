"""Plain text as word ids: vocabularies, public or private, and the sentences that they encode."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from sparsedp.accounting.events import DpEvent
from sparsedp.core.arrays import F64, I64
from sparsedp.core.counts import SparseCounts
from sparsedp.core.validation import check_count, check_positive
from sparsedp.data.sentences import read_lines
from sparsedp.mechanisms import top_k_gaussian, top_k_gaussian_event
from sparsedp.randomness import NoiseSource

Sentence = Sequence[str]

_WORD = re.compile(r"[^\W\d_]+(?:['\u2019-][^\W\d_]+)*")


def split_words(text: str) -> list[str]:
    """The words of a text in lower case; hyphens and apostrophes within a word stay, digits and the rest go."""
    return _WORD.findall(text.lower())


def read_sentences(path: str | Path) -> list[list[str]]:
    """A text file with one sentence a line, as ``read_lines`` reads it; lines without a word are left out."""
    sentences = [split_words(line) for line in read_lines(Path(path)).texts]
    found = [sentence for sentence in sentences if sentence]
    if not found:
        raise ValueError(f"corpus: {path} has no words")
    return found


@dataclass(frozen=True)
class WordVocabulary:
    """The words that have an id, in the order of their ids; other words are left out of what it encodes.

    A list of words from elsewhere is public. A list made from the text that is trained on releases some of it:
    ``most_frequent`` is for public text only, ``private_top`` pays for it.
    """

    words: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.words:
            raise ValueError("vocabulary: needs at least one word")
        if len(set(self.words)) != len(self.words):
            twice = next(word for word, count in Counter(self.words).items() if count > 1)
            raise ValueError(f"vocabulary: {twice!r} is listed twice")

    @classmethod
    def most_frequent(
        cls, sentences: Iterable[Sentence], size: int, exclude: Collection[str] = ()
    ) -> WordVocabulary:
        """The ``size`` most frequent words, on the caller's word that the sentences are public: not DP."""
        counts = Counter(word for sentence in sentences for word in sentence if word not in exclude)
        if len(counts) < check_count("size", size):
            raise ValueError(f"size: there are only {len(counts)} different words, {size} were asked for")
        # Words that are equally frequent in alphabetical order, so that the order of sentences does not matter.
        return cls(tuple(sorted(counts, key=lambda word: (-counts[word], word))[:size]))

    @classmethod
    def private_top(
        cls,
        sentences: Iterable[Sentence],
        candidates: Sequence[str],
        size: int,
        *,
        mu: float,
        words_per_sentence: int = 8,
        source: NoiseSource,
    ) -> tuple[WordVocabulary, DpEvent]:
        """The ``size`` words with the largest noisy counts among public ``candidates``, and what that costs.

        Guarantee: add-or-remove-one *sentence*; a sentence counts each of its different candidates once, scaled
        so that the counts of one sentence have at most the norm ``sqrt(words_per_sentence)``. Event: one Gaussian,
        mu-GDP. Released: the words. Proof: post-processing of the Gaussian mechanism on the histogram of all
        candidates, also of those that do not occur. The ids are in the order of the candidates, which is public.
        """
        norm = math.sqrt(check_count("words_per_sentence", words_per_sentence))
        std = norm / check_positive("mu", mu)
        known = cls(tuple(candidates))
        if size > len(known):
            raise ValueError(f"size: {size} words were asked for, but candidates has only {len(known)}")
        counts = np.zeros(len(known))
        for sentence in sentences:
            own = np.unique(known.ids(sentence))
            counts[own] += min(1.0, norm / math.sqrt(max(own.size, 1)))
        touched = np.flatnonzero(counts)
        chosen = top_k_gaussian(
            touched, counts[touched], len(known), k=size, std=std, stream=source.selection
        )
        event = top_k_gaussian_event(std=std, sensitivity=norm)
        return cls(tuple(known.words[n] for n in chosen.tolist())), event

    def __len__(self) -> int:
        return len(self.words)

    @cached_property
    def _id_of(self) -> dict[str, int]:
        return {word: n for n, word in enumerate(self.words)}

    def id_of(self, word: str) -> int:
        """The id of a listed word."""
        if word not in self._id_of:
            raise ValueError(f"word: {word!r} is not in the vocabulary of {len(self):,} words")
        return self._id_of[word]

    def ids(self, sentence: Sentence) -> I64:
        """The ids of the listed words of a sentence, in their order."""
        found = (self._id_of.get(word) for word in sentence)
        return np.array([n for n in found if n is not None], dtype=np.int64)

    def phrase(self, ids: Iterable[int]) -> str:
        """The words of some ids, for people."""
        return " ".join(self.words[n] for n in ids)

    def encode(self, sentences: Iterable[Sentence]) -> Corpus:
        """The sentences as ids; those without a listed word become empty."""
        return Corpus.of([self.ids(sentence) for sentence in sentences])


@dataclass(frozen=True, eq=False)
class Corpus:
    """Sentences of word ids: sentence i is ``ids[offsets[i]:offsets[i + 1]]``."""

    ids: I64
    offsets: I64

    @classmethod
    def of(cls, sentences: Sequence[I64]) -> Corpus:
        """The corpus of some sentences."""
        offsets = np.cumsum([0, *(len(sentence) for sentence in sentences)], dtype=np.int64)
        return cls(np.concatenate([np.empty(0, np.int64), *sentences]), offsets)

    def __len__(self) -> int:
        return self.offsets.size - 1

    def __iter__(self) -> Iterator[I64]:
        return (self[sentence] for sentence in range(len(self)))

    def __getitem__(self, sentence: int) -> I64:
        return self.ids[self.offsets[sentence] : self.offsets[sentence + 1]]

    def __add__(self, other: Corpus) -> Corpus:
        """All sentences of both."""
        offsets = np.concatenate([self.offsets, other.offsets[1:] + self.offsets[-1]])
        return Corpus(np.concatenate([self.ids, other.ids]), offsets)

    def counts(self, size: int) -> SparseCounts:
        """How often each of ``size`` words occurs. Private unless the corpus is public."""
        ids, values = np.unique(self.ids, return_counts=True)
        return SparseCounts(ids, values.astype(np.float64), size)

    def unigram_weights(self, size: int, power: float = 0.75) -> F64:
        """``(count + 1)^power`` of every word: word2vec's law of negatives. For a public corpus only."""
        counts = np.bincount(self.ids, minlength=size).astype(np.float64)
        return np.asarray((counts + 1.0) ** power)
