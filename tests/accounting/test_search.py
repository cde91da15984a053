import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparsedp.accounting.search import last_fitting, solve_falling


@given(exponent=st.floats(-8, -0.3), scale=st.floats(1e-3, 1e3), aim=st.floats(1e-2, 1e2))
def test_power_laws_are_solved_in_few_evaluations(exponent, scale, aim):
    calls = []

    def function(x):
        calls.append(x)
        return scale * x**exponent

    x, _ = solve_falling(function, aim=aim, slack=1e-4 * aim, guess=1.0, limits=(1e-30, 1e30))
    assert aim * (1 - 1e-4) <= scale * x**exponent <= aim
    assert len(calls) <= 14


@pytest.mark.parametrize("aim", [5e-324, 1e-200, 1e-12, 1e12, 1e300])
def test_aims_of_any_size(aim):
    x, _ = solve_falling(lambda x: 1 / x, aim=aim, slack=3e-6, guess=1.0, limits=(1e-2, 1e9))
    assert 1 / x <= aim or x > 0.99e9
    assert last_fitting(float, aim, guess=10, most=10**6) == min(math.floor(aim), 10**6 - 1)


def test_infinite_and_zero_values_are_stepped_over():
    def function(x):
        return math.inf if x < 3 else (0.0 if x > 50 else 100 / x)

    x, _ = solve_falling(function, aim=5.0, slack=0.01, guess=1.0, limits=(1e-3, 1e6))
    assert 4.99 <= 100 / x <= 5.0


def test_a_jump_is_answered_from_its_lower_side():
    x, _ = solve_falling(lambda x: 9.0 if x < 7 else 1.0, aim=5.0, slack=0.1, guess=1.0, limits=(1e-3, 1e6))
    assert 7 <= x < 7.01


def test_limits_are_returned_where_the_aim_is_beyond_them():
    assert solve_falling(lambda x: 9.0, aim=5.0, slack=0.1, guess=1.0, limits=(1e-3, 1e3))[0] > 990
    assert solve_falling(lambda x: 1.0, aim=5.0, slack=0.1, guess=1.0, limits=(1e-3, 1e3))[0] < 1.01e-3


@given(answer=st.integers(0, 10**6), guess=st.integers(1, 10**6), exponent=st.floats(0.4, 2))
def test_the_last_that_fits(answer, guess, exponent):
    calls = []

    def cost(n):
        calls.append(n)
        return float(n) ** exponent

    limit = (answer + 0.5) ** exponent
    assert last_fitting(cost, limit, guess=guess, most=10**7) == answer
    assert len(calls) < 60


@pytest.mark.parametrize(("limit", "found"), [(0.0, 0), (1e9, 99)])
def test_the_ends(limit, found):
    assert last_fitting(float, limit, guess=10, most=100) == found
