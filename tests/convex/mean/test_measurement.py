import numpy as np
import pytest

from sparsedp.convex.mean import measurement
from sparsedp.convex.mean.measurement import CosineMeasurement, GaussianMeasurement, random_measurement
from sparsedp.randomness import NoiseSource

KINDS = pytest.mark.parametrize("kind", [GaussianMeasurement, CosineMeasurement])


@KINDS
def test_products_agree_with_the_columns(kind):
    m, d = 13, 57
    matrix = kind(m, d, NoiseSource(seed=1).sampling)
    whole = matrix.columns(np.arange(d)).T
    generator = np.random.default_rng(0)
    x, y = generator.standard_normal(d), generator.standard_normal(m)
    operator = matrix.operator()
    assert operator.shape == (m, d)
    assert np.allclose(operator.matvec(x), whole @ x)
    assert np.allclose(operator.rmatvec(y), whole.T @ y)


@KINDS
def test_norms_are_kept_on_average(kind):
    m, d, s = 200, 2000, 8
    generator = np.random.default_rng(1)
    ratios = []
    for seed in range(25):
        matrix = kind(m, d, NoiseSource(seed=seed).sampling)
        ids = np.sort(generator.choice(d, s, replace=False))
        x = generator.standard_normal(s)
        ratios.append(np.linalg.norm(x @ matrix.columns(ids)) / np.linalg.norm(x))
    assert np.mean(ratios) == pytest.approx(1.0, abs=0.06)
    assert np.std(ratios) < 0.15  # 1 / sqrt(2m) = 0.05 in theory


def test_cosine_columns_are_exact_far_out():
    """Whole turns are taken off in integers: the last columns of a long transform are as good as the first."""
    m, d = 5, 2**20
    matrix = CosineMeasurement(m, d, NoiseSource(seed=2).sampling)
    unit = np.zeros(d)
    unit[d - 1] = 1.0
    assert np.allclose(matrix.operator().matvec(unit), matrix.columns(np.array([d - 1]))[0], atol=1e-9)


def test_a_matrix_is_held_only_where_it_is_small(monkeypatch):
    monkeypatch.setattr(measurement, "MOST_ENTRIES", 1000)
    stream = NoiseSource(seed=3).sampling
    assert isinstance(random_measurement(10, 100, stream), GaussianMeasurement)
    assert isinstance(random_measurement(10, 101, stream), CosineMeasurement)
