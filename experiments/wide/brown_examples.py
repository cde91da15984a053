"""The Brown corpus as CBOW examples: a public part that fixes the vocabulary, a training and a test part."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from experiments.common.brown import FILE, NAME, brown_sentences
from experiments.common.study import Study
from sparsedp.core.arrays import F64, I64
from sparsedp.data.context_windows import ContextWindows
from sparsedp.data.corpus import Corpus, Sentence, WordVocabulary

_STOP_WORDS = """
a about after again against all also am an and any are as at be because been before being between both but by can could
did do does down during each even few for from further had has have having he her here him himself his how i if in into
is it its itself just made many may me might more most much must my no nor not now of off on once one only or other our
out over own s same shall she should so some such t than that the their them then there these they this those through to
too two under until up upon us very was we were what when where which while who whom why will with would yet you your af
"""
STOP_WORDS = frozenset(_STOP_WORDS.split())
"""Words that say little of their neighbours, removed as in the paper, whose own list is not printed."""

GROUPS, GROUP_WORDS, GENERATED_SENTENCES = 12, 40, 1500
"""The small corpus that ``--quick`` trains on: each of its sentences has words of one group."""

Ids = Callable[[Sentence], I64]


@dataclass(frozen=True)
class Source:
    """A data set as ``--dataset`` names it, and its folder."""

    name: str
    source: str


BROWN = Source(NAME, NAME)


@dataclass(frozen=True)
class BrownExamples:
    """The three parts as word ids. The validation part is taken to be public, as in the paper."""

    size: int
    """The number of words."""
    train: Corpus
    validation: Corpus
    test: Corpus
    vocabulary: WordVocabulary | None = None
    """None where words are hashed."""

    @property
    def noise_law(self) -> F64:
        """The law of the negatives, from the public part."""
        return self.validation.unigram_weights(self.size)

    def windows(self, corpus: Corpus, *, seed: int) -> ContextWindows:
        """The examples of a part, with negatives of their own."""
        return ContextWindows(corpus, self.size, weights=self.noise_law, seed=seed)

    def frequent(self, k: int) -> I64:
        """The ``k`` most frequent words of the public part."""
        return np.argsort(-np.bincount(self.validation.ids, minlength=self.size), kind="stable")[:k]


def load(study: Study, size: int, *, hashed: bool = False) -> BrownExamples:
    """Brown with ``size`` words; with ``--quick`` a small generated corpus."""
    sentences = generated() if study.quick else _brown(study.find(NAME, [FILE]))
    parts = split(sentences)
    if hashed:
        return _encoded(parts, size, lambda sentence: hash_ids(sentence, size))
    vocabulary = WordVocabulary.most_frequent(parts["validation"], size, STOP_WORDS)
    return _encoded(parts, size, vocabulary.ids, vocabulary)


def split(sentences: Sequence[Sentence]) -> dict[str, list[Sentence]]:
    """A tenth of the sentences, by a hash of their words, is public; a fifth is for testing; the rest trains."""
    parts: dict[str, list[Sentence]] = {"train": [], "validation": [], "test": []}
    for sentence in sentences:
        tenth = zlib.crc32(" ".join(sentence).encode()) % 10
        parts["validation" if tenth == 0 else "test" if tenth < 3 else "train"].append(sentence)
    return parts


def hash_ids(sentence: Sentence, size: int) -> I64:
    """Words by hash buckets: every word has an id, and no list is made from the text."""
    return np.array(
        [zlib.crc32(word.encode()) % size for word in sentence if word not in STOP_WORDS], dtype=np.int64
    )


def generated() -> list[list[str]]:
    """Sentences of words that occur by group, frequent ones first."""
    rng = np.random.default_rng(0)
    sentences = []
    for _ in range(GENERATED_SENTENCES):
        group = rng.integers(GROUPS)
        words = (GROUP_WORDS * rng.random(rng.integers(3, 9)) ** 2).astype(np.int64)
        sentences.append([f"g{group}w{word}" for word in words])
    return sentences


def _encoded(
    parts: dict[str, list[Sentence]], size: int, ids: Ids, vocabulary: WordVocabulary | None = None
) -> BrownExamples:
    corpora = {name: Corpus.of([ids(sentence) for sentence in part]) for name, part in parts.items()}
    return BrownExamples(size, **corpora, vocabulary=vocabulary)


@cache
def _brown(folder: Path) -> list[list[str]]:
    return brown_sentences(folder)
