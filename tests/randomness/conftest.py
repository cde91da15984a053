from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

FALSE_ALARM = 1e-9


@pytest.fixture
def agrees() -> Callable[..., bool]:
    """Whether counts agree with expectations (chi-square, false alarm 1e-9); rare cells are pooled."""

    def test(observed: NDArray[np.int64], probabilities: NDArray[np.float64]) -> bool:
        total = observed.sum()
        expected = np.asarray(probabilities) * total
        rare = expected < 10
        cells_seen = [*observed[~rare], observed[rare].sum()]
        cells_expected = [*expected[~rare], max(total - expected[~rare].sum(), 1e-12)]
        if cells_expected[-1] < 10:  # fold the pool into the last common cell
            cells_seen[-2:] = [cells_seen[-2] + cells_seen[-1]]
            cells_expected[-2:] = [cells_expected[-2] + cells_expected[-1]]
        return bool(stats.chisquare(cells_seen, cells_expected).pvalue > FALSE_ALARM)

    return test


@pytest.fixture
def uniform_on_unit(agrees: Callable[..., bool]) -> Callable[..., bool]:
    """Whether numbers (a sample put through its cdf) look uniform on (0, 1), in 100 cells."""

    def test(values: NDArray[np.float64]) -> bool:
        counts, _ = np.histogram(values, bins=100, range=(0.0, 1.0))
        assert counts.sum() == values.size
        return agrees(counts, np.full(100, 0.01))

    return test
