from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import sparse

from sparsedp.convex.erm.losses import LogisticLoss, SmoothedHingeLoss, SoftmaxLoss
from sparsedp.convex.sgd.gradient_sums import clipped_rows
from sparsedp.convex.sgd.protocol import LinearModelLoss, Link, check_start


def _loss(link: Link, targets: list[float], outputs: int) -> LinearModelLoss:
    rng = np.random.default_rng(0)
    features = sparse.random_array((30, 12), density=0.3, rng=rng, format="csr")
    return LinearModelLoss(features, rng.choice(targets, size=30), link, outputs)


@pytest.mark.parametrize(
    ("link", "targets", "outputs"),
    [
        (LogisticLoss(1.0), [-1.0, 1.0], 1),
        (SmoothedHingeLoss(), [-1.0, 1.0], 1),
        (SoftmaxLoss(3), [0.0, 1.0, 2.0], 3),
    ],
)
def test_gradients_are_those_of_the_values(link: Link, targets: list[float], outputs: int) -> None:
    loss, rng = _loss(link, targets, outputs), np.random.default_rng(1)
    d = 12 * outputs
    assert (loss.size, loss.dimension) == (30, d)
    x, rows = rng.standard_normal(d), np.array([3, 4, 29])
    gradients = loss.gradient_rows(x, rows).toarray()
    for j in range(d):
        step = np.zeros(d)
        step[j] = 1e-6
        slope = (loss.value(x + step, rows) - loss.value(x - step, rows)) / 2e-6
        assert gradients[:, j] == pytest.approx(slope, abs=1e-8)
    assert loss.gradient_rows(x, rows).nnz == loss.features[rows].nnz * outputs
    assert loss.gradient_rows(x, np.empty(0, dtype=np.int64)).shape == (0, d)


def test_bad_input() -> None:
    with pytest.raises(ValueError, match="targets must be one per example"):
        LinearModelLoss(sparse.csr_array(np.eye(3)), np.ones(2), LogisticLoss())
    with pytest.raises(ValueError, match="outputs must"):
        LinearModelLoss(sparse.csr_array(np.eye(3)), np.ones(3), LogisticLoss(), outputs=0)
    loss = _loss(LogisticLoss(), [-1.0, 1.0], 1)
    with pytest.raises(ValueError, match="start must have shape"):
        check_start(np.zeros(5), loss)
    with pytest.raises(ValueError, match="start must be finite"):
        check_start(np.full(12, math.nan), loss)
    assert check_start([0] * 12, loss).dtype == np.float64
    assert check_start(np.zeros(12, dtype=np.float32), loss).dtype == np.float32


def test_targets_are_checked_and_examples_that_are_not_finite_have_no_gradient() -> None:
    features = sparse.csr_array(np.array([[1.0, 2.0], [math.nan, 1.0], [3.0, 0.0]]))
    loss = LinearModelLoss(features, np.array([1.0, 0.0, math.nan]), SoftmaxLoss(3), outputs=3)
    gradients = clipped_rows(loss.gradient_rows(np.zeros(6), np.arange(3)), 10.0).toarray()
    assert np.abs(gradients[0]).sum() > 0.0
    assert not gradients[1:].any()
    for link, targets in ((LogisticLoss(), [0.0, 1.0, 1.0]), (SoftmaxLoss(3), [0.0, 1.0, 3.0])):
        with pytest.raises(ValueError, match=r"^targets must"):
            LinearModelLoss(features, np.array(targets), link, outputs=link.outputs)
