import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparsedp.accounting import GaussianDpEvent, epsilon_of, merge_groups, merge_sigmas, split_sigma

sigmas = st.floats(0.05, 1e4)


@given(sigma=sigmas, ratio=st.floats(0.01, 100))
def test_split_and_merge_are_inverse(sigma, ratio):
    sigma1, sigma2 = split_sigma(sigma, ratio)
    assert merge_sigmas(sigma1, sigma2) == pytest.approx(sigma, rel=1e-12)
    assert sigma1 / sigma2 == pytest.approx(ratio, rel=1e-12)
    assert sigma2 == pytest.approx(sigma * math.sqrt(1 + ratio**-2), rel=1e-12)


@given(st.lists(sigmas, min_size=1, max_size=5))
def test_merging_only_costs(values):
    merged = merge_sigmas(*values)
    assert merged <= min(values) * (1 + 1e-12)
    assert merge_sigmas(*values, math.inf) == merged


def test_merged_gaussians_cost_what_they_cost_apart():
    apart = epsilon_of([(GaussianDpEvent(0.8), 1), (GaussianDpEvent(1.3), 2)], 1e-6)
    assert epsilon_of([(GaussianDpEvent(merge_sigmas(0.8, 1.3, 1.3)), 1)], 1e-6) == pytest.approx(
        apart, rel=1e-12
    )


def test_groups_clipped_apart():
    assert merge_groups([(1.0, 0.61), (1.0, 0.61)]) == pytest.approx(0.61 / math.sqrt(2))
    assert merge_groups([(3.0, 6.0)]) == pytest.approx(2.0)


def test_a_split_by_hand():
    # 3, 4, 5: a map with four thirds of the gradient's noise, 1/3^2 + 1/4^2 = 1/2.4^2.
    assert split_sigma(2.4, 4 / 3) == (pytest.approx(4.0, rel=1e-12), pytest.approx(3.0, rel=1e-12))
    assert merge_sigmas(3.0, 4.0) == pytest.approx(2.4, rel=1e-12)


def test_no_noise_at_all_is_never_rounded_to_some():
    assert merge_sigmas(1e-320, 1.0) <= 1e-320
    assert merge_sigmas(1e300, 1e300) == pytest.approx(1e300 / math.sqrt(2))


def test_no_information_at_all():
    assert merge_sigmas(math.inf, math.inf) == math.inf


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: merge_sigmas(), "sigmas"),
        (lambda: merge_sigmas(1.0, 0.0), "sigmas"),
        (lambda: merge_sigmas(math.nan), "sigmas"),
        (lambda: split_sigma(0.0, 5.0), "sigma_eff"),
        (lambda: split_sigma(1.0, -5.0), "noise_ratio"),
        (lambda: merge_groups([(0.0, 1.0)]), "clip"),
        (lambda: merge_groups([(1.0, math.inf)]), "std"),
        (lambda: merge_groups([(1e-300, 1e300)]), "std"),
        (lambda: split_sigma(1e300, 1e-300), "sigma_eff"),
        (lambda: split_sigma(1.0, 1e-300), "noise_ratio"),
        (lambda: merge_sigmas(10**400), "sigmas"),
    ],
)
def test_bad_arguments_are_named(call, name):
    with pytest.raises(ValueError, match=f"^{name}"):
        call()
