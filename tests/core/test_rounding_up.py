"""Upper bounds are printed as they are, or above."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparsedp.core.rounding_up import NOISE, rounded_up


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (1.004, 3, "1.01"),
        (1.0, 3, "1"),
        (0.1 + 0.2, 3, "0.3"),
        (1.006, 3, "1.01"),
        (9.9961, 4, "9.997"),
        (9.9991, 4, "10"),
        (1 / 640, 3, "0.00157"),
        (1e-7, 2, "1e-07"),
        (1.01e-7, 2, "1.1e-07"),
        (1e-7 * (1 + 1e-12), 2, "1e-07"),
        (0.9991, 3, "1"),
        (123456.0, 3, "1.24e+05"),
        (5e-324, 3, "4.94e-324"),
        (0.0, 3, "0"),
        (math.inf, 3, "inf"),
    ],
)
def test_the_last_digit_is_rounded_up(value: float, digits: int, text: str) -> None:
    assert rounded_up(value, digits) == text


@given(st.floats(1e-300, 1e300), st.integers(1, 6))
def test_what_is_printed_is_never_below_and_less_than_a_digit_above(value: float, digits: int) -> None:
    printed = float(rounded_up(value, digits))
    assert value * (1 - 2 * NOISE) <= printed <= value * (1 + 1.001 * 10 ** (1 - digits))
