"""Streaming FEST: the thresholded noisy histogram has the law of the dense one."""

from __future__ import annotations

import numpy as np
from scipy import stats

from sparsedp.randomness import NoiseSource
from sparsedp.rows import RowCounts, TableShape
from sparsedp.selection.vocabulary import StreamingVocabulary, noisy_counts_above


def test_what_passes_has_the_law_of_noising_every_row() -> None:
    """Survival of each row by chi-square, values above the threshold by Kolmogorov-Smirnov; each at 1e-8."""
    counts = RowCounts(np.array([3, 7]), np.array([4.0, 1.0]))
    stream, runs, size, std, threshold = NoiseSource(1).selection, 4000, 12, 2.0, 2.5
    survived, touched, untouched = np.zeros(size), [], []
    for _ in range(runs):
        found = noisy_counts_above(counts, size, std, threshold, stream)
        assert (np.diff(found.ids) > 0).all()
        survived[found.ids] += 1
        values = dict(zip(found.ids.tolist(), found.counts, strict=True))
        touched += [values[3]] if 3 in values else []
        untouched += [value for row, value in values.items() if row not in (3, 7)]
    mean = np.zeros(size)
    mean[counts.ids] = counts.counts
    p = stats.norm.sf((threshold - mean) / std)
    assert np.sum((survived - runs * p) ** 2 / (runs * p * (1 - p))) < stats.chi2.isf(1e-8, size)
    for values_, centre in ((touched, 4.0), (untouched, 0.0)):
        law = stats.truncnorm((threshold - centre) / std, np.inf, centre, std)
        assert stats.kstest(values_, law.cdf).pvalue > 1e-8
    wrong = stats.truncnorm(threshold / (1.3 * std), np.inf, 0.0, 1.3 * std)
    assert stats.kstest(untouched, wrong.cdf).pvalue < 1e-8


def test_sums_over_periods_find_the_frequent_rows() -> None:
    tables = [TableShape("large", 10**7, 4), TableShape("small", 10, 4)]
    vocabulary = StreamingVocabulary(tables, k=20, mu=0.5)
    stream = NoiseSource(2).selection
    for period in range(3):
        ids = np.sort(np.concatenate([np.arange(10), np.arange(10) + 1000 * (period + 1)]))
        vocabulary.observe({"large": RowCounts(ids, np.where(ids < 10, 50.0, 2.0))}, stream)
    fest = vocabulary.fest(vocabulary.event)
    assert set(range(10)) <= set(fest.sorted_rows["large"].tolist())
    assert fest.sorted_rows["large"].size == 20
    assert "small" not in fest.sorted_rows
    assert fest.one_off_events() == (vocabulary.event,)
