"""Shared by the tests of the mechanisms: seeded streams, tests of a law with a false alarm rate of 1e-9."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from sparsedp.randomness import NoiseSource, Stream

FALSE_ALARM = 1e-9


@pytest.fixture
def stream(request: pytest.FixtureRequest) -> Stream:
    """A stream of its own for every test, always the same."""
    return NoiseSource(seed=zlib.crc32(request.node.name.encode())).noise


@pytest.fixture
def follows() -> Callable[[ArrayLike, ArrayLike], bool]:
    """Chi-square: do these counts follow these probabilities? Cells that expect less than 10 are pooled."""

    def test(counts: ArrayLike, probabilities: ArrayLike) -> bool:
        observed, p = np.asarray(counts, dtype=float), np.asarray(probabilities, dtype=float)
        assert p.sum() == pytest.approx(1.0)
        expected = p * observed.sum()
        rare = expected < 10
        if rare.any():
            observed = np.append(observed[~rare], observed[rare].sum())
            expected = np.append(expected[~rare], expected[rare].sum())
        if expected[-1] == 0:
            assert observed[-1] == 0
            observed, expected = observed[:-1], expected[:-1]
        if expected.size == 1:
            return True
        return bool(
            stats.chisquare(observed, expected * observed.sum() / expected.sum()).pvalue > FALSE_ALARM
        )

    return test


@pytest.fixture
def same_law() -> Callable[[ArrayLike, ArrayLike], bool]:
    """Chi-square on a table: do two samples of integer outcomes come from one law?"""

    def test(first: ArrayLike, second: ArrayLike) -> bool:
        a, b = np.asarray(first).ravel(), np.asarray(second).ravel()
        outcomes, codes = np.unique(np.concatenate([a, b]), return_inverse=True)
        table: NDArray[np.int64] = np.stack(
            [
                np.bincount(codes[: a.size], minlength=outcomes.size),
                np.bincount(codes[a.size :], minlength=outcomes.size),
            ]
        )
        rare = table.sum(axis=0) < 20
        if rare.any():
            table = np.column_stack([table[:, ~rare], table[:, rare].sum(axis=1)])
        table = table[:, table.sum(axis=0) > 0]
        return table.shape[1] < 2 or bool(stats.chi2_contingency(table).pvalue > FALSE_ALARM)

    return test
