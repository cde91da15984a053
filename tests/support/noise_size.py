"""Whether noise has the size that is claimed of it."""

from __future__ import annotations

import numpy as np
from scipy.stats import chi2


def assert_normal_of_size(noise: np.ndarray, std: float) -> None:
    """By a chi-squared test: a false alarm has a probability below 1e-9, and half or twice the size is caught."""

    def tail(claimed: float) -> float:
        statistic = float(np.sum((noise / claimed) ** 2))
        return 2 * min(float(chi2.cdf(statistic, noise.size)), float(chi2.sf(statistic, noise.size)))

    assert tail(std) > 1e-9
    assert max(tail(std / 2), tail(2 * std)) < 1e-9
