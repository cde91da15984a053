from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from experiments.sgo.blocks import Blocks, Hill, RecordingLoss, block_rows, hill, ramp, well
from sparsedp.convex.sgd.protocol import LinearModelLoss
from sparsedp.core.arrays import F64

Shape = Callable[[F64], tuple[F64, F64, F64]]
SHAPES = {"well": well(0.3), "ramp": ramp(0.5, 0.2), "hill": hill}


@pytest.mark.parametrize("per_coordinate", [False, True])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_gradient_and_hessian_are_the_derivatives(shape: Shape, per_coordinate: bool) -> None:
    blocks = Blocks(np.array([0.5, 0.3, 0.2]), 4, 20, shape, per_coordinate)
    generator = np.random.default_rng(0)
    x, v, step = generator.normal(0, 0.3, 20), generator.normal(0, 1, 20), 1e-6
    (above, gradient_above), (below, gradient_below) = (
        blocks.value_and_gradient(x + sign * step * v) for sign in (1, -1)
    )
    gradient = blocks.value_and_gradient(x)[1]
    assert (above - below) / (2 * step) == pytest.approx(gradient @ v, abs=1e-6)
    assert (gradient_above - gradient_below) / (2 * step) == pytest.approx(blocks.hessian(x)(v), abs=1e-5)
    assert blocks.gradient_norm(x) == pytest.approx(float(np.linalg.norm(gradient)))
    assert not gradient[12:].any()


def test_rows_are_unit_vectors_along_blocks() -> None:
    rows = block_rows(5, 12, 3, 2).toarray()
    assert np.linalg.norm(rows, axis=1) == pytest.approx(1.0)
    assert [np.flatnonzero(row).tolist() for row in rows] == [[0, 1, 2], [3, 4, 5]] * 2 + [[0, 1, 2]]


def test_the_norm_of_the_risk_is_recorded_at_every_iterate() -> None:
    rows = block_rows(4, 4, 2, 2)
    risk = Blocks(np.full(2, 0.5), 2, 4, hill)
    loss = LinearModelLoss(rows, np.zeros(4), Hill())
    recorded = RecordingLoss(loss, risk)
    iterates, chosen = [np.zeros(4), np.ones(4)], np.arange(4)
    for x in iterates:
        assert (recorded.gradient_rows(x, chosen) != loss.gradient_rows(x, chosen)).nnz == 0
        mean = np.asarray(loss.gradient_rows(x, chosen).mean(axis=0)).ravel()
        assert recorded.squared_norms[-1] == pytest.approx(mean @ mean)
    assert (recorded.size, recorded.dimension, len(recorded.squared_norms)) == (4, 4, 2)
    assert recorded.value(iterates[0], chosen) == pytest.approx(1.0)
