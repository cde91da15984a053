from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import sparse
from support.schedules import handmade_schedule

from sparsedp.convex.erm.losses import SmoothedHingeLoss
from sparsedp.convex.sgd.batch_schedule import BatchSchedule, draw_levels
from sparsedp.convex.sgd.bias_reduced_sgd import BiasReducedSGD
from sparsedp.convex.sgd.protocol import LinearModelLoss
from sparsedp.convex.sgd.step_sizes import convex_step_size, gradient_scale, stationary_step_size
from sparsedp.randomness import NoiseSource


def _schedule(size: int, noise: float, steps: int = 50) -> BatchSchedule:
    return handmade_schedule(size, noise, np.zeros(steps, dtype=np.int64))


def test_scale_grows_as_lemma_6_4_says() -> None:
    """nu^2 of order L^2 ln(n) kappa sqrt(s ln d): fourth root in s, half power in kappa, in n a logarithm."""

    def scale(size: int = 2**40, noise: float = 10.0, s: int = 4, bound: float = 1.0) -> float:
        return gradient_scale(_schedule(size, noise), dimension=10**18, sparsity=s, l2_bound=bound)

    assert scale(s=64) == pytest.approx(2 * scale(), rel=0.15)
    assert scale(noise=40.0) == pytest.approx(2 * scale(), rel=0.15)
    assert scale(bound=3.0) == pytest.approx(3 * scale())
    assert scale(size=2**50) ** 2 - scale(size=2**40) ** 2 == pytest.approx(
        scale(size=2**40) ** 2 - scale(size=2**30) ** 2
    )


def test_scale_is_that_of_real_estimates() -> None:
    """An upper bound, and within a factor of five of the measured root mean square."""
    size, d, s, kappa = 64, 4000, 4, 8.0
    rng = np.random.default_rng(0)
    ids = np.sort(np.argsort(rng.uniform(size=(size, 50)), axis=1)[:, :s], axis=1)
    features = sparse.csr_array(
        (np.full(size * s, 0.5), ids.ravel(), np.arange(0, size * s + 1, s)), shape=(size, d)
    )
    loss = LinearModelLoss(features, -np.ones(size), SmoothedHingeLoss())
    source, schedule = NoiseSource(1), _schedule(size, kappa)
    sgd = BiasReducedSGD(l2_bound=1.0, sparsity=s, step_size=1.0)
    levels = draw_levels(400, size=size, stream=source.sampling)
    squares = [
        float((sgd.gradient(loss, np.zeros(d), int(k), schedule=schedule, source=source).values ** 2).sum())
        for k in levels
    ]
    predicted = gradient_scale(schedule, dimension=d, sparsity=s, l2_bound=1.0)
    assert predicted / 5 < math.sqrt(np.mean(squares)) < predicted


def test_step_sizes() -> None:
    schedule = _schedule(1024, 10.0, steps=400)
    nu = gradient_scale(schedule, dimension=1000, sparsity=4, l2_bound=1.0)
    common = {"dimension": 1000, "sparsity": 4, "l2_bound": 1.0}
    assert convex_step_size(schedule, diameter=2.0, **common) == pytest.approx(2.0 / (nu * 20))
    step = stationary_step_size(schedule, gap=3.0, smoothness=0.5, **common)
    assert step == pytest.approx(math.sqrt(3.0 / (0.5 * 400)) / nu)
    assert stationary_step_size(schedule, gap=1e9, smoothness=0.5, **common) == 1.0


def test_bad_input() -> None:
    common = {"dimension": 1000, "sparsity": 4, "l2_bound": 1.0}
    with pytest.raises(ValueError, match="diameter must"):
        convex_step_size(_schedule(16, 1.0), diameter=math.inf, **common)
    with pytest.raises(ValueError, match="smoothness must"):
        stationary_step_size(_schedule(16, 1.0), gap=1.0, smoothness=0.0, **common)
    with pytest.raises(ValueError, match="gap must"):
        stationary_step_size(_schedule(16, 1.0), gap=math.nan, smoothness=1.0, **common)
    with pytest.raises(ValueError, match="sparsity must"):
        gradient_scale(_schedule(16, 1.0), dimension=10, sparsity=0, l2_bound=1.0)
