import numpy as np
import pytest
from scipy import stats

from sparsedp.accounting.events import LaplaceDpEvent, PureDpEvent
from sparsedp.audit.distinguishing import audit, exact_epsilon
from sparsedp.mechanisms import laplace, laplace_event, laplace_on_grid, laplace_on_grid_event
from sparsedp.randomness import grid_of

FALSE_ALARM = 1e-9


def test_noise_is_laplace_of_the_stated_scale(stream):
    noise = laplace(np.full(200_000, -2.0), scale=3.0, stream=stream) + 2.0
    assert stats.kstest(noise, stats.laplace(scale=3.0).cdf).pvalue > FALSE_ALARM
    assert stats.kstest(noise, stats.laplace(scale=3.2).cdf).pvalue < FALSE_ALARM


@pytest.mark.parametrize("value", [0.0, 0.1, -7.3, 1e6 / 3])
def test_the_lattice_of_the_output_does_not_depend_on_the_data(value, stream):
    multiples = laplace(np.full(1000, value), scale=2.5, stream=stream) / grid_of(2.5)
    assert np.array_equal(multiples, np.rint(multiples))


@pytest.mark.parametrize("form", ["float", "grid"])
def test_audit_and_that_it_notices_a_wrong_scale(form, stream):
    def mechanism(scale):
        if form == "grid":
            return lambda value, stream, runs: laplace_on_grid(
                np.full(runs, value), scale=scale, grid=2.0**-7, stream=stream
            )
        return lambda value, stream, runs: laplace(np.full(runs, value), scale=scale, stream=stream)

    runs = 100_000
    right = audit(mechanism(1.0), (1.0, 0.0), runs=runs, delta=0.0, claimed=1.0 + 2.0**-7, stream=stream)
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


def discrete_laplace_pmf(shift, scale, reach):
    weights = np.exp(-np.abs(np.arange(-reach, reach + 1) - shift) / scale)
    return weights / weights.sum()


def test_on_grid_the_law_is_the_discrete_laplace_exactly(stream, follows):
    scale, grid, reach = 0.64, 0.01, 2000
    draws = np.rint(laplace_on_grid(np.full(40_000, -0.02), scale=scale, grid=grid, stream=stream) / grid)
    cells = (np.arange(-reach, reach + 1) + reach) // 10
    counts = np.bincount((draws.astype(int) + reach) // 10, minlength=cells[-1] + 1)
    assert follows(counts, np.bincount(cells, discrete_laplace_pmf(-2, scale / grid, reach)))
    assert not follows(counts, np.bincount(cells, discrete_laplace_pmf(-2, 1.1 * scale / grid, reach)))


def test_on_grid_the_pair_costs_what_the_event_says():
    """0.005 + a little moved by 1 may round to 101 steps of 0.01: eps = 1.01 / scale exactly."""
    event = laplace_on_grid_event(scale=2.0, grid=0.01, sensitivity=1.0, nonzeros=1)
    assert event == PureDpEvent(1.01 / 2.0)
    pair = (discrete_laplace_pmf(0, 200.0, 5000), discrete_laplace_pmf(101, 200.0, 5101))
    exact = exact_epsilon(pair[0] / pair[0].sum(), pair[1][101:-101] / pair[1][101:-101].sum())
    assert exact == pytest.approx(event.epsilon, rel=1e-6)


def test_event():
    assert laplace_event(scale=3.0, sensitivity=2.0) == LaplaceDpEvent(1.5)


@pytest.mark.parametrize("bad", [0.0, -1.0, np.nan, np.inf])
def test_bad_input(bad, stream):
    with pytest.raises(ValueError, match=r"^scale "):
        laplace([1.0], scale=bad, stream=stream)
    with pytest.raises(ValueError, match=r"^grid "):
        laplace_on_grid([1.0], scale=1.0, grid=bad, stream=stream)
    with pytest.raises(ValueError, match=r"^values "):
        laplace([np.inf], scale=1.0, stream=stream)
