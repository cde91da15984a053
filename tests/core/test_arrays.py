import numpy as np

from sparsedp.core.arrays import weighted_sum, weighted_sums

ROWS = np.random.default_rng(0).standard_normal((3, 50_000))
WEIGHTS = np.random.default_rng(1).random(50_000)


def test_the_sums_are_those_of_blas():
    np.testing.assert_allclose(weighted_sums(WEIGHTS, ROWS), ROWS @ WEIGHTS, rtol=1e-10)
    np.testing.assert_allclose(weighted_sum(WEIGHTS, ROWS[0]), ROWS[0] @ WEIGHTS, rtol=1e-10)
