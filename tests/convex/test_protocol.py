from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import sparse

from sparsedp.convex.protocol import LinearModelLoss, check_start


def _logistic(seed: int = 0) -> LinearModelLoss:
    rng = np.random.default_rng(seed)
    features = sparse.random_array((30, 12), density=0.3, rng=rng, format="csr")
    targets = rng.choice([-1.0, 1.0], size=30)
    return LinearModelLoss(
        features, targets, lambda m, y: np.logaddexp(0, -y * m), lambda m, y: -y / (1 + np.exp(y * m))
    )


def test_gradients_are_those_of_the_values() -> None:
    loss, rng = _logistic(), np.random.default_rng(1)
    x, rows = rng.standard_normal(12), np.array([3, 4, 29])
    gradients = loss.gradient_rows(x, rows).toarray()
    for j in range(12):
        step = np.zeros(12)
        step[j] = 1e-6
        slope = (loss.value(x + step, rows) - loss.value(x - step, rows)) / 2e-6
        assert gradients[:, j] == pytest.approx(slope, abs=1e-8)
    assert loss.gradient_rows(x, rows).nnz == loss.features[rows].nnz
    assert loss.gradient_rows(x, np.empty(0, dtype=np.int64)).shape == (0, 12)


def test_bad_input() -> None:
    with pytest.raises(ValueError, match="targets must be one per example"):
        LinearModelLoss(sparse.csr_array(np.eye(3)), np.ones(2), lambda m, y: m, lambda m, y: m)
    loss = _logistic()
    with pytest.raises(ValueError, match="start must have shape"):
        check_start(np.zeros(5), loss)
    with pytest.raises(ValueError, match="start must be finite"):
        check_start(np.full(12, math.nan), loss)
    assert check_start([0] * 12, loss).dtype == np.float64
    assert check_start(np.zeros(12, dtype=np.float32), loss).dtype == np.float32
