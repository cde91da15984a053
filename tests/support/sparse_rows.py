"""A classification problem with sparse rows."""

import numpy as np
from scipy import sparse


def sparse_problem(n=600, d=400, classes=2, seed=0):
    """Rows of a few ones; the class shows in which block of features they fall."""
    generator = np.random.default_rng(seed)
    y = generator.integers(0, classes, n)
    block = d // classes
    columns = np.where(
        generator.random((n, 6)) < 0.7,
        y[:, None] * block + generator.integers(0, block // 8, (n, 6)),
        generator.integers(0, d, (n, 6)),
    )
    rows = np.zeros((n, d))
    np.put_along_axis(rows, columns, 1.0, axis=1)
    return sparse.csr_array(rows), y
