import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from sparsedp.randomness import NoiseSource
from sparsedp.randomness.torch_normals import normals, round_to_grid_


def test_distribution_and_its_scale(uniform_on_unit: Callable[..., bool]) -> None:
    sample = normals(1_000_000, 3.0, NoiseSource(seed=1).noise).astype(np.float64) / 3.0
    assert uniform_on_unit(stats.norm.cdf(sample))
    assert not uniform_on_unit(stats.norm.cdf(sample / 1.01))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("grid", [2.0**-20, 0.5, 4.0])
def test_rounding_moves_by_half_a_step_at_most(dtype: type, grid: float) -> None:
    values = (np.random.default_rng(8).normal(size=10_000) * 100).astype(dtype)
    rounded = round_to_grid_(values.copy(), grid)
    assert np.abs(rounded - values).max() <= grid / 2
    assert np.array_equal(np.remainder(rounded.astype(np.float64), grid), np.zeros(10_000))


def test_rounding_works_on_strided_views() -> None:
    values = np.full((4, 4), 0.3)
    round_to_grid_(values[:, 1], 1.0)
    assert values[:, 1].tolist() == [0.0] * 4
    assert values[:, 0].tolist() == pytest.approx([0.3] * 4)


@pytest.mark.parametrize("grid", [0.0, -1.0, 3.0, math.nan, math.inf])
def test_bad_grids_are_named(grid: float) -> None:
    with pytest.raises(ValueError, match=r"^grid: must be a power of two"):
        round_to_grid_(np.zeros(1), grid)
