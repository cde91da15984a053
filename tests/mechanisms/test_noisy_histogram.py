"""A noisy histogram of all rows, and the expected counts behind it."""

from __future__ import annotations

import numpy as np
import pytest

from sparsedp.mechanisms.noisy_histogram import expected_counts, noisy_histogram
from sparsedp.randomness import Stream


def test_every_row_has_noise_of_the_stated_size(stream: Stream) -> None:
    """Half or twice the noise fails: the standard error of the deviation is 0.4%."""
    noisy = noisy_histogram([3, 7], [100.0, 5000.0], 30_000, std=20.0, stream=stream)
    counts = np.zeros(30_000)
    counts[[3, 7]] = 100.0, 5000.0
    error = noisy - counts
    assert np.abs(error[[3, 7]]).max() < 6 * 20.0
    assert abs(error.std() / 20.0 - 1.0) < 0.025
    assert abs(error.mean()) < 6 * 20.0 / np.sqrt(30_000)


def test_sparse_counts_are_told_from_noise() -> None:
    """Nine of ten rows have no reads: noise of two deviations means nothing, ten deviations do."""
    rng = np.random.default_rng(1)
    counts = np.where(rng.random(50_000) < 0.1, 1000.0, 0.0)
    noisy = counts + rng.normal(0.0, 50.0, counts.size)
    expected = expected_counts(noisy, 50.0)
    assert np.abs(expected[counts == 0]).mean() < 5.0
    assert np.abs(expected[counts > 0] - 1000.0).mean() < 10.0
    assert ((expected - counts) ** 2).mean() < 0.05 * 50.0**2


def test_counts_that_noise_drowns_are_near_their_mean() -> None:
    """The error is near the counts' own spread, a hundredth of the noise's: nobody can do much better."""
    rng = np.random.default_rng(2)
    counts = rng.poisson(rng.gamma(0.5, 6.0, 200_000)).astype(float)
    noisy = counts + rng.normal(0.0, 60.0, counts.size)
    expected = expected_counts(noisy, 60.0)
    assert abs(expected.mean() - counts.mean()) < 0.5
    assert ((expected - counts) ** 2).mean() < 0.01 * 60.0**2


def test_large_counts_stay_and_none_is_negative() -> None:
    noisy = np.array([-500.0, 0.0, 2.0, 1e4, 1e9])
    expected = expected_counts(noisy, 10.0)
    assert (expected >= 0).all()
    assert expected[3:].tolist() == [1e4, 1e9]
    assert expected_counts(np.empty(0), 10.0).size == 0
    assert expected_counts(np.array([5e4, 2e6]), 10.0).tolist() == [5e4, 2e6]
    assert expected_counts(np.array([-1e9, 0.0, 1e9]), 1.0).tolist() == [0.0, 0.0, 1e9]


@pytest.mark.parametrize("std", [0.0, -1.0, np.nan, np.inf])
def test_noise_must_be_positive(std: float, stream: Stream) -> None:
    with pytest.raises(ValueError, match="std"):
        noisy_histogram([0], [1.0], 3, std=std, stream=stream)
