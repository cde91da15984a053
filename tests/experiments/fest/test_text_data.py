from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from experiments.fest.text import DATA_SETS
from experiments.fest.text_data import VALIDATION_TOKENS, made_up, parts_of

SENTENCES = [
    *(f"a{n} b{n} c{n} d{n} e{n} f{n} g{n} h{n} i{n} j{n}" for n in range(1500)),
    *(f"b{n} c{n} d{n}" for n in range(1500)),
    *(f"b{n} c{n}" for n in range(1500)),
]
LENGTHS = np.array([len(text.split()) + 2 for text in SENTENCES])
SHORT = replace(DATA_SETS[0], longest=10, examples=None)


def test_nothing_that_a_validation_phrase_contains_is_trained_on_but_pairs_of_words() -> None:
    training, validation = parts_of(SENTENCES, LENGTHS, SHORT)
    assert LENGTHS[validation].min() >= VALIDATION_TOKENS
    assert len(validation) == 1000
    judged = [SENTENCES[n] for n in validation]
    contained = [n for n in training if any(SENTENCES[n] in text for text in judged)]
    assert {len(SENTENCES[n].split()) for n in contained} == {2}
    assert len(training) == 500 + 1500  # the three words of the sentences that are not judged, and all pairs


def test_the_validation_part_is_the_same_for_every_size() -> None:
    few, many = (parts_of(SENTENCES, LENGTHS, replace(SHORT, examples=n)) for n in (100, 1000))
    assert np.array_equal(few[1], many[1])
    assert np.array_equal(few[0], many[0][:100])
    assert LENGTHS[many[0]].max() <= SHORT.longest


def test_made_up_reviews_have_three_parts(tmp_path: Path) -> None:
    texts = made_up(tmp_path)
    assert [len(part) for part in (texts.training, texts.validation, texts.held_out)] == [256, 100, 100]
    assert np.all(np.diff(texts.training.lengths) >= 0)
