import math

import numpy as np
import pytest
from scipy import stats
from scipy.optimize import brentq

from sparsedp.accounting import analytic_gaussian_delta, analytic_gaussian_sigma
from sparsedp.accounting.events import GaussianDpEvent
from sparsedp.audit.distinguishing import audit
from sparsedp.mechanisms import gaussian, gaussian_event, gaussian_std
from sparsedp.randomness import noise_lattice

FALSE_ALARM = 1e-9


def test_noise_is_normal_of_the_stated_scale(stream):
    noise = gaussian(np.full(200_000, 5.0), std=3.0, stream=stream) - 5.0
    assert stats.kstest(noise, stats.norm(scale=3.0).cdf).pvalue > FALSE_ALARM
    assert stats.kstest(noise, stats.norm(scale=3.1).cdf).pvalue < FALSE_ALARM


@pytest.mark.parametrize("value", [0.0, 0.1, -7.3, 1e6 / 3])
def test_the_lattice_of_the_output_does_not_depend_on_the_data(value, stream):
    multiples = gaussian(np.full(1000, value), std=2.5, stream=stream) / noise_lattice(2.5)
    assert np.array_equal(multiples, np.rint(multiples))
    for bits in (1, 4, 8):
        hits = int(np.count_nonzero(multiples % 2**bits == 0))
        assert stats.binomtest(hits, 1000, 2.0**-bits).pvalue > FALSE_ALARM


def test_audit_and_that_it_notices_a_wrong_scale(stream):
    epsilon, delta = 1.0, 0.01
    std = gaussian_std(sensitivity=2.0, epsilon=epsilon, delta=delta)

    def mechanism(scale):
        return lambda value, stream, runs: gaussian(np.full(runs, value), std=scale, stream=stream)

    right = audit(mechanism(std), (2.0, 0.0), runs=2_000_000, delta=delta, claimed=epsilon, stream=stream)
    assert not right.refuted
    assert right.lower_bound > 0.85
    wrong = audit(
        mechanism(0.8 * std), (2.0, 0.0), runs=2_000_000, delta=delta, claimed=epsilon, stream=stream
    )
    assert wrong.refuted


def test_the_textbook_formula_wastes_and_then_fails():
    """sqrt(2 ln(1.25/delta)) / eps, as in WIDE's Lemma 3 and SGO's Fact 2.3, at delta = 1e-5."""
    delta = 1e-5

    def textbook(epsilon):
        return math.sqrt(2 * math.log(1.25 / delta)) / epsilon

    assert textbook(1.0) / analytic_gaussian_sigma(1.0, delta) == pytest.approx(1.30, abs=0.01)
    breaks = brentq(lambda epsilon: textbook(epsilon) - analytic_gaussian_sigma(epsilon, delta), 1.0, 20.0)
    assert breaks == pytest.approx(8.4, abs=0.1)
    assert analytic_gaussian_delta(10.0, 1 / textbook(10.0)) > 1.5 * delta


def test_std_and_event():
    std = gaussian_std(sensitivity=3.0, epsilon=0.7, delta=1e-6)
    assert gaussian_event(std=std, sensitivity=3.0) == GaussianDpEvent(std / 3.0)
    assert analytic_gaussian_delta(0.7, 3.0 / std) == pytest.approx(1e-6, rel=1e-6)


@pytest.mark.parametrize("bad", [0.0, -1.0, np.nan, np.inf])
def test_bad_input(bad, stream):
    with pytest.raises(ValueError, match=r"^std "):
        gaussian([1.0], std=bad, stream=stream)
    with pytest.raises(ValueError, match=r"^sensitivity "):
        gaussian_std(sensitivity=bad, epsilon=1.0, delta=1e-5)


def test_bad_values(stream):
    with pytest.raises(ValueError, match=r"^values "):
        gaussian([np.nan], std=1.0, stream=stream)
    with pytest.raises(ValueError, match=r"^values: must be finite and at most 2\^61 cells"):
        gaussian([1e300], std=1.0, stream=stream)
    assert gaussian([2.0**36], std=1.0, stream=stream)[0] == pytest.approx(2.0**36, abs=12)


def test_shapes_are_kept(stream):
    assert gaussian(np.zeros((2, 3)), std=1.0, stream=stream).shape == (2, 3)
    assert gaussian([], std=1.0, stream=stream).shape == (0,)
    assert gaussian(1.5, std=1.0, stream=stream).shape == ()
