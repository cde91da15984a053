"""Every check lets good values through as plain numbers and names the argument of bad ones."""

import math

import numpy as np
import pytest

from sparsedp.core import validation as v


@pytest.mark.parametrize(
    ("check", "good", "bad"),
    [
        (
            lambda x: v.check_positive("sigma", x),
            [1e-300, 2, np.float32(3)],
            [0, -1, math.inf, math.nan, "a", None, 10**400],
        ),
        (lambda x: v.check_non_negative("sigma", x), [0, 5], [-1e-300, math.inf, math.nan, "a"]),
        (lambda x: v.check_finite("sigma", x), [-3, 0.5], [math.inf, -math.inf, math.nan]),
        (lambda x: v.check_number("sigma", x), [-math.inf, 0.5], [math.nan, "x", [1, 2]]),
        (lambda x: v.check_epsilon(x, "sigma"), [0.01, 100], [0, -1, math.inf, math.nan]),
        (lambda x: v.check_delta(x, "sigma"), [1e-300, 0.5], [0, 1, -0.1, 1.5, math.nan]),
        (lambda x: v.check_probability("sigma", x), [0, 0.5, 1], [-1e-9, 1.0001, math.nan, math.inf]),
        (lambda x: v.check_rate("sigma", x), [1e-9, 1], [0, 1.1, -1, math.nan]),
        (
            lambda x: v.check_count("sigma", x),
            [1, 7.0, np.int32(3)],
            [0, -1, 2.5, math.nan, math.inf, "3", None, True, 1e30, 10**30, 10**5000, -(10**5000)],
        ),
    ],
)
def test_bad_values_are_named(check, good, bad):
    for value in good:
        assert check(value) == value
        assert type(check(value)) in (float, int)
    for value in bad:
        with pytest.raises(ValueError, match=r"^sigma must"):
            check(value)


def test_count_has_a_minimum():
    assert v.check_count("steps", 0, minimum=0) == 0
    with pytest.raises(ValueError, match="steps must be at least 2, got 1"):
        v.check_count("steps", 1, minimum=2)


def test_count_has_a_maximum():
    assert v.check_count("rows", 2**53) == 2**53
    with pytest.raises(ValueError, match="rows must be at most 7, got 8"):
        v.check_count("rows", 8, maximum=7)
    with pytest.raises(ValueError, match=r"rows must be at most 9007199254740992, got about 10\^5000"):
        v.check_count("rows", 10**5000)


def test_releases_are_few_enough_to_be_accounted_for():
    assert v.check_releases("steps", 0) == 0
    assert v.check_releases("steps", 1e12) == 10**12
    with pytest.raises(ValueError, match="steps must be at most 1000000000000, got 1000000000001"):
        v.check_releases("steps", 10**12 + 1)
    with pytest.raises(ValueError, match="steps must be at least 1"):
        v.check_releases("steps", 0, minimum=1)
