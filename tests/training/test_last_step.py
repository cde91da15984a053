"""Sizes of a step's gradient."""

from __future__ import annotations

import pytest

from sparsedp.training import LastStep


@pytest.mark.parametrize(("released", "times"), [(50, 8.0), (400, 1.0), (0, 400.0)])
def test_how_many_times_smaller_the_gradient_is(released: int, times: float) -> None:
    """A step that releases nothing counts as one coordinate."""
    step = LastStep(
        step=3,
        rows=5,
        gradient_size=released,
        dense_size=9,
        table_coordinates=400,
        rows_per_table={"table": 5},
    )
    assert step.reduction == times
