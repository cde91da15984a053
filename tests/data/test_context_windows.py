"""The examples of CBOW: windows, padding, and negatives that depend on nobody else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

from sparsedp.data import ContextWindows, Corpus

SENTENCES = [np.array([0, 1, 2, 3]), np.array([4]), np.array([], dtype=np.int64), np.array([2, 2])]


def windows_of(sentences: list[np.ndarray] = SENTENCES, **options: Any) -> ContextWindows:
    return ContextWindows(Corpus.of(sentences), 9, **({"window": 2, "negatives": 3} | options))


def test_a_window_has_the_neighbours_of_its_sentence_and_padding() -> None:
    windows = windows_of()
    pad = windows.padding
    assert pad == 9
    assert windows.targets.tolist() == [0, 1, 2, 3, 2, 2]  # the lonely word has no example
    assert windows.contexts.tolist() == [
        [pad, pad, 1, 2],
        [pad, 0, 2, 3],
        [0, 1, 3, pad],
        [1, 2, pad, pad],
        [pad, pad, 2, pad],
        [pad, 2, pad, pad],
    ]


@pytest.mark.parametrize("window", [1, 4, 50])
def test_windows_against_a_slow_loop(window: int) -> None:
    rng = np.random.default_rng(3)
    sentences = [rng.integers(0, 9, size=rng.integers(0, 12)) for _ in range(30)]
    expected = [
        (sorted([*sentence[max(0, t - window) : t], *sentence[t + 1 : t + 1 + window]]), int(word))
        for sentence in sentences
        for t, word in enumerate(sentence)
        if len(sentence) > 1
    ]
    found = windows_of(sentences, window=window)
    assert [
        (sorted(context[context < 9].tolist()), int(word))
        for context, word in zip(found.contexts, found.targets, strict=True)
    ] == expected


def test_an_examples_negatives_depend_on_no_other_example() -> None:
    """Without the first sentence, and in batches of any size, the others keep their negatives."""
    rng = np.random.default_rng(4)
    sentences = [rng.integers(0, 9, size=5) for _ in range(20)]
    whole, without = windows_of(sentences), windows_of(sentences[1:])
    everyone = np.arange(len(whole))
    assert np.array_equal(whole.draw_negatives(everyone)[5:], without.draw_negatives(everyone[:-5]))
    alone = np.concatenate([whole.draw_negatives([n]) for n in everyone])
    assert np.array_equal(whole.draw_negatives(everyone), alone)
    _, candidates = whole.__getitems__(everyone)
    assert np.array_equal(candidates[:, 0].numpy(), whole.targets)
    assert np.array_equal(whole[3][1].numpy(), candidates[3].numpy())


def test_rounds_and_seeds_draw_others() -> None:
    windows = windows_of()
    first = windows.draw_negatives(np.arange(6))
    windows.round = 1
    assert not np.array_equal(windows.draw_negatives(np.arange(6)), first)
    windows.round = 0
    assert np.array_equal(windows.draw_negatives(np.arange(6)), first)
    assert not np.array_equal(windows_of(seed=1).draw_negatives(np.arange(6)), first)


@pytest.mark.parametrize("weights", [None, np.arange(1.0, 10.0)])
def test_negatives_follow_the_law_given_that_they_are_other_words(weights: np.ndarray | None) -> None:
    """Chi-square at 1e-8; the law with the word itself is rejected."""
    windows = windows_of([np.array([5, 1])], weights=weights, negatives=50)
    drawn = []
    for round_ in range(800):
        windows.round = round_
        drawn.append(windows.draw_negatives([0]))
    counts = np.bincount(np.concatenate(drawn).ravel(), minlength=9)
    law = np.ones(9) if weights is None else weights.copy()
    assert counts[5] == 0
    others = np.arange(9) != 5
    expected = counts.sum() * law[others] / law[others].sum()
    assert stats.chisquare(counts[others], expected).pvalue > 1e-8
    assert stats.chisquare(counts[:5], counts[:5].sum() * np.arange(5, 0, -1) / 15).pvalue < 1e-8


def test_draws_of_neighbouring_examples_are_not_alike() -> None:
    """Correlation of the first negatives of examples that differ in one word, 20,000 of them, below 6 / sqrt(n)."""
    sentences = [np.array([n % 997, 1 + n % 991]) for n in range(20_000)]
    windows = ContextWindows(Corpus.of(sentences), 1000, negatives=2)
    drawn = windows.draw_negatives(np.arange(len(windows))).astype(np.float64)
    for a, b in ((drawn[:-1, 0], drawn[1:, 0]), (drawn[:, 0], drawn[:, 1])):
        assert abs(np.corrcoef(a, b)[0, 1]) < 6 / np.sqrt(len(a))


def test_batches_hold_every_example_once() -> None:
    windows = windows_of()
    sizes = [len(context) for context, _ in windows.batches(4)]
    assert sizes == [4, 2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window": 0}, "window"),
        ({"negatives": 0}, "negatives"),
        ({"seed": -1}, "seed"),
        ({"weights": np.zeros(9)}, "weights must be 9 positive numbers"),
        ({"weights": np.ones(8)}, "weights must be 9 positive numbers"),
    ],
)
def test_refusals(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        windows_of(**options)
    with pytest.raises(ValueError, match="ids beyond vocabulary_size"):
        ContextWindows(Corpus.of(SENTENCES), 4)
