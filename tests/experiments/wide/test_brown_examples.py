from __future__ import annotations

from pathlib import Path

import numpy as np

from experiments.common.study import Study
from experiments.wide.brown_examples import STOP_WORDS, generated, hash_ids, load, split


def test_parts_are_disjoint_and_do_not_depend_on_each_other() -> None:
    sentences = generated()
    parts = split(sentences)
    assert sum(map(len, parts.values())) == len(sentences)
    assert len(parts["train"]) > 0.6 * len(sentences)
    assert len(parts["test"]) > len(parts["validation"]) > 0
    again = split(sentences[100:])
    assert all(sentence in parts[name] for name, part in again.items() for sentence in part[:20])
    texts = {name: {" ".join(sentence) for sentence in part} for name, part in parts.items()}
    assert not texts["train"] & texts["validation"]
    assert not texts["train"] & texts["test"]


def test_the_vocabulary_comes_from_the_public_part_alone(tmp_path: Path) -> None:
    """Sentences of the training part change no word of it."""
    examples = load(Study("a", tmp_path, quick=True), 50)
    assert examples.vocabulary is not None
    counts = np.bincount(examples.validation.ids, minlength=50)
    assert (np.diff(counts) <= 0).all()
    assert examples.frequent(3).tolist() == [0, 1, 2]
    assert examples.noise_law.shape == (50,)
    windows = examples.windows(examples.train, seed=1)
    assert windows.window == 4
    assert windows.negatives == 8


def test_hashed_words_have_ids_without_a_list(tmp_path: Path) -> None:
    assert hash_ids(["the", "war", "of", "war"], 50_000).tolist() == [hash_ids(["war"], 50_000)[0]] * 2
    examples = load(Study("a", tmp_path, quick=True), 500, hashed=True)
    assert examples.vocabulary is None
    assert examples.train.ids.max() < 500


def test_stop_words_are_words() -> None:
    assert {"the", "of", "and", "me"} <= STOP_WORDS
    assert not {"war", "mother", "government"} & STOP_WORDS
