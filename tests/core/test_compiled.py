from __future__ import annotations

import numpy as np

from sparsedp.core.compiled import compiled, compiled_sums


@compiled
def running(values: np.ndarray) -> float:
    total = np.float32(0.0)
    for value in values:
        total += value
    return total


@compiled_sums
def together(values: np.ndarray) -> float:
    total = np.float32(0.0)
    for value in values:
        total += value
    return total


def test_operations_round_as_written() -> None:
    """Added one by one in float32, 1 + 2^-25 + 2^-25 + ... stays 1."""
    values = np.full(1025, 2.0**-25, dtype=np.float32)
    values[0] = 1.0
    assert running(values) == 1.0


def test_sums_may_be_added_in_any_order() -> None:
    values = np.full(1025, 2.0**-25, dtype=np.float32)
    values[0] = 1.0
    assert 1.0 <= together(values) <= 1.0 + 2.0**-15
    assert np.isnan(together(np.array([1.0, np.nan], dtype=np.float32)))
