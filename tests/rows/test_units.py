"""Which examples are one unit: numbers within a unit, sizes and scales."""

from __future__ import annotations

import numpy as np
import pytest

from sparsedp.rows import Units


def test_units_know_their_examples() -> None:
    units = Units(np.array([0, 0, 0, 1, 2, 2]), 3)
    assert units.count == 3
    assert units.sizes.tolist() == [3, 1, 2]
    assert units.slots.tolist() == [0, 1, 2, 0, 0, 1]
    assert units.scales(6.0).tolist() == [6.0, 6.0, 6.0]
    assert Units(units.of_example, 3, mean=True).scales(6.0).tolist() == [2.0, 6.0, 3.0]


def test_a_batch_without_examples_has_no_units() -> None:
    units = Units(np.empty(0, np.int64), 4)
    assert (units.count, units.sizes.size, units.slots.size, units.scales(1.0).size) == (0, 0, 0, 0)


def test_a_unit_with_too_many_examples_is_refused() -> None:
    with pytest.raises(ValueError, match="units: one has 3 examples, where at most 2 are allowed"):
        Units(np.array([0, 0, 0, 1]), 2)
