import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparsedp.randomness import grid_of


@given(st.floats(1e-200, 1e200))
def test_the_grid_is_a_power_of_two_within_the_public_range(std: float) -> None:
    grid = grid_of(std)
    assert math.frexp(grid)[0] == 0.5
    assert 2.0**-20 <= grid / std <= 2.0**-12


@pytest.mark.parametrize("std", [0.0, -1.0, math.nan, math.inf, 1e300])
def test_bad_scales_are_refused(std: float) -> None:
    with pytest.raises(ValueError, match="std: must be positive"):
        grid_of(std)
