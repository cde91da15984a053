"""Streaming FEST: the thresholded noisy histogram has the law of the dense one."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from sparsedp.accounting.events import GaussianDpEvent
from sparsedp.core.counts import SparseCounts
from sparsedp.core.tables import TableShape
from sparsedp.randomness import NoiseSource
from sparsedp.selection import vocabulary as vocabulary_module
from sparsedp.selection.vocabulary import StreamingVocabulary, noisy_counts_above


def test_what_passes_has_the_law_of_noising_every_row() -> None:
    """Survival of each row by chi-square, values above the threshold by Kolmogorov-Smirnov; each at 1e-8."""
    counts = SparseCounts(np.array([3, 7]), np.array([4.0, 1.0]), 12)
    stream, runs, size, std, threshold = NoiseSource(1).selection, 4000, 12, 2.0, 2.5
    survived, touched, untouched = np.zeros(size), [], []
    for _ in range(runs):
        found = noisy_counts_above(counts, std, threshold, stream)
        assert (np.diff(found.ids) > 0).all()
        survived[found.ids] += 1
        values = dict(zip(found.ids.tolist(), found.values, strict=True))
        touched += [values[3]] if 3 in values else []
        untouched += [value for row, value in values.items() if row not in (3, 7)]
    mean = np.zeros(size)
    mean[counts.ids] = counts.values
    p = stats.norm.sf((threshold - mean) / std)
    assert np.sum((survived - runs * p) ** 2 / (runs * p * (1 - p))) < stats.chi2.isf(1e-8, size)
    for values_, centre in ((touched, 4.0), (untouched, 0.0)):
        law = stats.truncnorm((threshold - centre) / std, np.inf, centre, std)
        assert stats.kstest(values_, law.cdf).pvalue > 1e-8
    wrong = stats.truncnorm(threshold / (1.3 * std), np.inf, 0.0, 1.3 * std)
    assert stats.kstest(untouched, wrong.cdf).pvalue < 1e-8


def test_the_noise_of_a_period_is_what_its_event_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """An example moves the joint histogram of 3 tables by sqrt(3): that over the noise is mu, for all rows."""
    tables = [TableShape(name, 10**6, 4) for name in "abc"]
    vocabulary = StreamingVocabulary(tables, k=20, mu=0.4)
    touched: list[tuple[float, float]] = []
    passing: list[float] = []
    above: list[tuple[int, float]] = []

    def spied(name: str, note: Callable[..., None]) -> None:
        real = getattr(vocabulary_module, name)
        monkeypatch.setattr(vocabulary_module, name, lambda *a, **o: (note(*a, **o), real(*a, **o))[1])

    spied("round_gaussian", lambda _, *, std, lattice, stream: touched.append((std, lattice)))
    spied("bernoulli_positions", lambda stream, size, p: passing.append(p))
    spied("rounded_gaussian_tail", lambda lowest, std, count, stream: above.append((lowest, std)))
    counts = SparseCounts(np.array([3]), np.array([5.0]), 10**6)
    vocabulary.observe(dict.fromkeys("abc", counts), NoiseSource(3).selection)
    (std, lattice), (p0,), (lowest, std_cells) = *touched, passing, *above
    assert isinstance(vocabulary.event, GaussianDpEvent)
    assert math.sqrt(3) * vocabulary.event.noise_multiplier == std == pytest.approx(std_cells * lattice)
    assert p0 == stats.norm.sf((lowest - 0.5) / std_cells) == pytest.approx(20 / (3 * 10**6), rel=1e-5)


def test_the_deviation_of_noisy_counts() -> None:
    """A million rows with a count far above the threshold, a million without: one percent would show."""
    rows, std, stream = 1_000_000, 3.0, NoiseSource(4).selection
    high = noisy_counts_above(SparseCounts(np.arange(rows), np.full(rows, 1e3), rows), std, 1.0, stream)
    assert abs((high.values - 1e3).std() / std - 1) < 6 / math.sqrt(2 * rows) < 0.005
    noise = noisy_counts_above(SparseCounts.zeros(rows), std, 0.0, stream)
    assert abs(noise.ids.size / rows - 0.5) < 6 * 0.5 / math.sqrt(rows)
    assert abs(np.sqrt(np.mean(noise.values**2)) / std - 1) < 6 / math.sqrt(rows) < 0.01


def test_a_threshold_below_zero_is_refused() -> None:
    nothing = SparseCounts.zeros(10)
    with pytest.raises(ValueError, match="threshold: must not be negative"):
        noisy_counts_above(nothing, 1.0, -0.1, NoiseSource(5).selection)


def test_sums_over_periods_find_the_frequent_rows() -> None:
    tables = [TableShape("large", 10**7, 4), TableShape("small", 10, 4)]
    vocabulary = StreamingVocabulary(tables, k=20, mu=0.5)
    stream = NoiseSource(2).selection
    for period in range(3):
        ids = np.sort(np.concatenate([np.arange(10), np.arange(10) + 1000 * (period + 1)]))
        vocabulary.observe({"large": SparseCounts(ids, np.where(ids < 10, 50.0, 2.0), 10**7)}, stream)
    fest = vocabulary.fest(vocabulary.event)
    assert set(range(10)) <= set(fest.sorted_rows["large"].tolist())
    assert fest.sorted_rows["large"].size == 20
    assert "small" not in fest.sorted_rows
    assert fest.one_off_events() == (vocabulary.event,)
