import math

import numpy as np
import pytest
from scipy.stats import binom

from sparsedp.accounting import analytic_gaussian_delta, analytic_gaussian_epsilon
from sparsedp.accounting.pld.grid import GridLoss, discretise
from sparsedp.accounting.pld.pairs import Gaussian, randomized_response
from sparsedp.accounting.pld.tilted import GridTooLarge, TiltedLoss, convolve


def many_responses(epsilon, count, at):
    """The exact delta of `count` randomised responses: a sum over how many told the truth."""
    truths = np.arange(count + 1)
    losses = epsilon * (2 * truths - count)
    masses = binom.pmf(truths, count, 1 / (1 + math.exp(-epsilon)))
    return float(masses @ -np.expm1(np.minimum(at - losses, 0)))


@pytest.mark.parametrize("tilt", [0.0, 0.5, 1.0])
def test_repeating_is_exact_composition(tilt):
    # 0.25 is a grid point, so that nothing is rounded.
    loss = discretise(randomized_response(0.25), 2**-4, 1e-15).tilted(tilt).repeated(100, -35, -60)
    for at in (1.0, 3.0, 6.0):
        assert loss.delta_at(at) == pytest.approx(many_responses(0.25, 100, at), rel=1e-6)


def test_tilting_resolves_what_an_untilted_fft_cannot():
    exact = many_responses(0.25, 200, 40.0)
    assert exact < 1e-25
    # The composed losses are centred where the tilted mean, 200 * 0.25 tanh((tilt + 1/2) / 4), is 40.
    tilt = 4 * math.atanh(0.8) - 0.5
    tilted = discretise(randomized_response(0.25), 2**-4, 1e-15).tilted(tilt).repeated(200, -35, -100)
    untilted = discretise(randomized_response(0.25), 2**-4, 1e-15).tilted(0.0).repeated(200, -100, -100)
    assert tilted.delta_at(40.0) == pytest.approx(exact, rel=1e-6)
    assert untilted.delta_at(40.0) > 1e3 * exact


@pytest.mark.parametrize("tilt", [0.0, 3.0])
def test_epsilon_and_delta_invert_each_other(tilt):
    loss = discretise(Gaussian(0.2), 2**-8, 1e-15).tilted(tilt).repeated(25, -35, -60)
    for delta in (1e-3, 1e-6, 1e-9):
        epsilon = loss.epsilon_at(delta)
        assert loss.delta_at(epsilon) == pytest.approx(delta, rel=1e-6)
        assert epsilon >= analytic_gaussian_epsilon(delta, 1.0)
        assert epsilon == pytest.approx(analytic_gaussian_epsilon(delta, 1.0), rel=1e-3)


def test_epsilon_is_zero_where_delta_is_large():
    loss = discretise(Gaussian(0.2), 2**-8, 1e-15).tilted(0.0)
    assert loss.epsilon_at(0.5) == 0
    assert loss.epsilon_at(1e-13) > 0
    assert (
        discretise(Gaussian(0.2), 2**-8, 1e-3).tilted(0.0).epsilon_at(1e-5) == math.inf
    )  # too much mass unplaced


def test_below_the_grid_nothing_is_claimed():
    loss = discretise(Gaussian(1.0), 2**-6, 1e-12).tilted(8.0).repeated(50, -20, -60)
    assert loss.losses[0] > 30
    assert loss.delta_at(1.0) == 1
    assert loss.epsilon_at(0.5) >= loss.losses[0]


@pytest.mark.parametrize("factor", [2, 16])
def test_coarsening_only_adds_and_keeps_the_masses(factor):
    fine = discretise(Gaussian(1.0), 2**-10, 1e-12).tilted(2.0)
    coarse = fine.coarsened(factor)
    assert coarse.step == factor * fine.step
    for epsilon in (0.5, 1.0, 3.0):
        assert fine.delta_at(epsilon) <= coarse.delta_at(epsilon) * (1 + 1e-12)
        assert coarse.delta_at(epsilon) <= fine.delta_at(epsilon) * (1 + 10 * coarse.step)
    for loss in (fine, coarse):
        p = loss.weights * np.exp(loss.log_scale - loss.tilt * loss.losses)
        assert p.sum() == pytest.approx(1, abs=1e-9)
        assert (p * np.exp(-loss.losses)).sum() == pytest.approx(1, abs=1e-9)


def test_convolution_adds_losses():
    parts = [discretise(Gaussian(mu), 2**-9, 1e-14).tilted(1.0) for mu in (0.6, 0.8)]
    for epsilon in (0.5, 2.0):
        assert convolve(parts).delta_at(epsilon) == pytest.approx(
            analytic_gaussian_delta(epsilon, 1.0), rel=1e-3
        )


@pytest.mark.parametrize("tilt", [0.0, 2.0])
def test_mass_at_infinite_loss_is_counted_everywhere(tilt):
    # P: 0.6 at loss 1, 0.3 at loss -1/2, 0.1 at infinity. Above epsilon 0, delta = 0.1 + 0.6 (1 - e^(epsilon - 1)).
    masses = np.array([0.3, 0, 0, 0.6])
    loss = GridLoss(0.5, -1, masses, masses * np.exp([0.5, 0, -0.5, -1]), 0.1, 0.0).tilted(tilt)
    assert loss.delta_at(0.3) == pytest.approx(0.1 - 0.6 * math.expm1(0.3 - 1), rel=1e-12)
    for delta in (0.2, 0.4):
        assert loss.epsilon_at(delta) == pytest.approx(1 + math.log1p(-(delta - 0.1) / 0.6), rel=1e-9)
    assert loss.epsilon_at(0.1) == math.inf
    assert convolve([loss, loss]).infinity == pytest.approx(0.2)
    assert loss.repeated(3, -60, -60).infinity == pytest.approx(0.3)
    assert loss.coarsened(2).infinity == pytest.approx(0.1)


def test_grids_that_are_too_large_are_refused():
    loss = discretise(Gaussian(0.1), 2**-12, 1e-12).tilted(0.0)
    with pytest.raises(GridTooLarge):
        loss.repeated(10_000, -30, -60, most=1000)
    # Lost from the top means infinite loss.
    assert loss.repeated(10, -5, -5).infinity > loss.repeated(10, -30, -60).infinity


def test_many_deltas_at_once_are_those_of_one_at_a_time():
    loss = discretise(Gaussian(0.3), 2**-8, 1e-15).tilted(0.0).repeated(25, -35, -60)
    epsilons = np.array([0.0, 0.001, 0.5, 0.5 + 2**-8, 2.0, 6.0, 1000.0])
    found = loss.deltas_at(epsilons)
    assert found == pytest.approx([loss.delta_at(epsilon) for epsilon in epsilons], rel=1e-12)
    assert found[-1] == loss.infinity
    above = discretise(randomized_response(3.0), 2**-4, 1e-15).tilted(0.0)
    only_above = TiltedLoss(above.step, 16, np.ones(1), 0.0, 0.0, 0.0)
    assert only_above.deltas_at(np.array([0.5, 1.0])).tolist() == [
        1.0,
        0.0,
    ]  # below the grid nothing is known


@pytest.mark.parametrize("delta", [1e-9, 1e-100, 1e-131, 1e-200, 1e-280])
def test_epsilon_at_a_delta_of_any_size(delta):
    # Without a tilt, the masses that decide are as small as delta.
    loss = discretise(Gaussian(1.0), 2**-8, 1e-290).tilted(0.0)
    assert loss.epsilon_at(delta) == pytest.approx(analytic_gaussian_epsilon(delta, 1.0), rel=1e-4)
    assert loss.delta_at(loss.epsilon_at(delta)) <= delta * (1 + 1e-9)
