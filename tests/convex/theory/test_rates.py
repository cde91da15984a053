from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparsedp.convex.theory import rates


def test_table_1_pure() -> None:
    n, d, s, epsilon = 10**4, 10**6, 10, 0.5
    upper, lower = rates.mean_upper(n, d, s, epsilon), rates.mean_lower(n, d, s, epsilon)
    assert upper.value == pytest.approx(math.sqrt(s * math.log(d) / (epsilon * n)))
    assert lower.value == pytest.approx(math.sqrt(s * math.log(d / (epsilon * n)) / (epsilon * n)))
    assert upper.regime == lower.regime == rates.HIGH_DIMENSIONAL
    many = rates.mean_upper(10**9, d, s, epsilon)
    assert many.regime == rates.LOW_DIMENSIONAL
    assert many.value == pytest.approx(math.sqrt(s * d) / (epsilon * 10**9))


def test_table_1_approximate() -> None:
    n, d, s, epsilon, delta = 10**4, 10**6, 10, 0.5, 1e-6
    upper = rates.mean_upper(n, d, s, epsilon, delta)
    root = math.sqrt(epsilon * n)
    assert upper.value == pytest.approx((s * math.log(d / s) * math.log(1 / delta)) ** 0.25 / root)
    lower = rates.mean_lower(n, d, s, epsilon, delta)
    assert lower.value == pytest.approx((s * math.log(1 / delta)) ** 0.25 / root)
    assert rates.mean_upper(3, d, s, epsilon, delta).regime == rates.CONSTANT


def test_table_2() -> None:
    n, d, s, epsilon, delta = 10**5, 10**8, 4, 1.0, 1e-6
    high = (s * math.log(d) * math.log(1 / delta)) ** 0.25 / math.sqrt(epsilon * n)
    erm = rates.erm_upper(n, d, s, epsilon, delta, lipschitz=2.0, diameter=3.0)
    assert erm.value == pytest.approx(6.0 * high)
    sco = rates.sco_upper(n, d, s, epsilon, delta, lipschitz=2.0, diameter=3.0)
    assert sco.value == pytest.approx(erm.value + 6.0 / math.sqrt(n))
    pure = rates.erm_upper(n, d, s, epsilon, lipschitz=2.0, diameter=3.0, smoothness=5.0)
    expected = 2 ** (2 / 3) * 5 ** (1 / 3) * 3 ** (4 / 3) * (s * math.log(d) / n) ** (1 / 3)
    assert pure.value == pytest.approx(expected)
    near = rates.stationarity_upper(n, d, s, epsilon, delta)
    logs = s * math.log(d / s) * math.log(1 / delta) ** 3
    assert near.value == pytest.approx(logs**0.125 / n**0.25)


def test_dense_rates_take_over_when_n_is_large() -> None:
    assert rates.erm_upper(10**9, 1000, 10, 1.0, 1e-6).regime == rates.LOW_DIMENSIONAL
    assert rates.erm_upper(10**9, 1000, 10, 1.0).value == pytest.approx(1000 / 10**9)
    dense = (math.sqrt(1000 * math.log(1e6)) / 10**9) ** (2 / 3)
    assert rates.stationarity_upper(10**9, 1000, 10, 1.0, 1e-6).value == pytest.approx(dense)


@given(
    n=st.integers(1, 10**9),
    d=st.integers(1, 10**9),
    share=st.floats(1e-6, 1.0),
    epsilon=st.floats(0.01, 10.0),
    delta=st.sampled_from([0.0, 1e-12, 1e-6, 1e-3]),
)
def test_lower_never_passes_upper(n: int, d: int, share: float, epsilon: float, delta: float) -> None:
    s = max(1, int(share * d))
    if epsilon * n < 1.0:
        return
    upper, lower = rates.mean_upper(n, d, s, epsilon, delta), rates.mean_lower(n, d, s, epsilon, delta)
    assert 0.0 < lower.value <= upper.value * (1 + 1e-12) <= 1.0 + 1e-12


def test_slopes_are_those_of_the_exponents() -> None:
    n = np.geomspace(10**3, 10**5, 9)
    errors = [rates.mean_upper(int(each), 10**9, 4, 1.0, 1e-6).value for each in n]
    assert rates.log_log_slope(n, errors) == pytest.approx(-0.5, abs=1e-3)
    s = [4, 8, 16, 32, 64]
    errors = [rates.mean_upper(10**5, 10**12, each, 1.0).value for each in s]
    assert rates.log_log_slope(s, errors) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 10, 1, 1.0), "n must"),
        ((10, 0, 1, 1.0), "d must"),
        ((10, 10, 0, 1.0), "s must"),
        ((10, 10, 11, 1.0), "s must be at most d"),
        ((10, 10, 1, 0.0), "epsilon must"),
        ((10, 10, 1, math.nan), "epsilon must"),
        ((10, 10, 1, 1.0, 1.0), "delta must"),
        ((10, 10, 1, 1.0, -0.1), "delta must"),
    ],
)
def test_bad_sizes(arguments: tuple[float, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rates.mean_upper(*arguments)  # type: ignore[arg-type]


def test_other_bad_input() -> None:
    with pytest.raises(ValueError, match="l2_bound must"):
        rates.mean_upper(10, 10, 1, 1.0, l2_bound=math.inf)
    with pytest.raises(ValueError, match="delta must be positive"):
        rates.stationarity_upper(10, 10, 1, 1.0, 0.0)
    with pytest.raises(ValueError, match="diameter must"):
        rates.erm_upper(10, 10, 1, 1.0, diameter=math.inf)
    with pytest.raises(ValueError, match="y must be finite and positive"):
        rates.log_log_slope([1.0, 2.0], [0.0, 1.0])
    with pytest.raises(ValueError, match="one length"):
        rates.log_log_slope([1.0, 2.0, 3.0], [1.0, 1.0])
    with pytest.raises(ValueError, match="different values"):
        rates.log_log_slope([2.0, 2.0], [1.0, 1.0])
    with pytest.raises(ValueError, match="at least two"):
        rates.log_log_slope([1.0], [1.0])
