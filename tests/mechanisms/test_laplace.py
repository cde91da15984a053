import numpy as np
import pytest
from scipy import stats

from sparsedp.accounting.events import LaplaceDpEvent
from sparsedp.audit.distinguishing import audit
from sparsedp.mechanisms import laplace, laplace_event
from sparsedp.randomness import noise_lattice

FALSE_ALARM = 1e-9


def test_noise_is_laplace_of_the_stated_scale(stream):
    noise = laplace(np.full(200_000, -2.0), scale=3.0, stream=stream) + 2.0
    assert stats.kstest(noise, stats.laplace(scale=3.0).cdf).pvalue > FALSE_ALARM
    assert stats.kstest(noise, stats.laplace(scale=3.2).cdf).pvalue < FALSE_ALARM


@pytest.mark.parametrize("value", [0.0, 0.1, -7.3, 1e6 / 3])
def test_the_lattice_of_the_output_does_not_depend_on_the_data(value, stream):
    multiples = laplace(np.full(1000, value), scale=2.5, stream=stream) / noise_lattice(2.5)
    assert np.array_equal(multiples, np.rint(multiples))
    for bits in (1, 4, 8):
        hits = int(np.count_nonzero(multiples % 2**bits == 0))
        assert stats.binomtest(hits, 1000, 2.0**-bits).pvalue > FALSE_ALARM


def test_audit_and_that_it_notices_a_wrong_scale(stream):
    def mechanism(scale):
        return lambda value, stream, runs: laplace(np.full(runs, value), scale=scale, stream=stream)

    runs = 100_000
    right = audit(mechanism(1.0), (1.0, 0.0), runs=runs, delta=0.0, claimed=1.0, stream=stream)
    assert not right.refuted
    assert right.lower_bound > 0.85
    assert audit(mechanism(0.8), (1.0, 0.0), runs=runs, delta=0.0, claimed=1.0, stream=stream).refuted


def test_the_sum_of_moves_counts_not_the_largest(stream):
    """Two coordinates that move by 1 each cost 2 at scale 1: the statistic is the smaller of the two."""

    def mechanism(value, stream, runs):
        return laplace(np.full((runs, 2), value), scale=1.0, stream=stream).min(axis=1)

    result = audit(mechanism, (1.0, 0.0), runs=400_000, delta=0.0, claimed=2.0, stream=stream)
    assert not result.refuted
    assert result.lower_bound > 1.7


def test_event():
    assert laplace_event(scale=3.0, sensitivity=2.0) == LaplaceDpEvent(1.5)


@pytest.mark.parametrize("bad", [0.0, -1.0, np.nan, np.inf])
def test_bad_input(bad, stream):
    with pytest.raises(ValueError, match=r"^scale "):
        laplace([1.0], scale=bad, stream=stream)
    with pytest.raises(ValueError, match=r"^values "):
        laplace([np.inf], scale=1.0, stream=stream)
