"""Profiles hold: no delta is below the truth, and none above what `delta_bound` finds by more than a little."""

import math

import numpy as np
import pytest

from sparsedp.accounting import (
    GaussianDpEvent,
    LaplaceDpEvent,
    MixtureOfGaussiansDpEvent,
    NonPrivateDpEvent,
    PoissonSampledDpEvent,
    PureDpEvent,
    analytic_gaussian_delta,
)
from sparsedp.accounting.pld import profile
from sparsedp.accounting.pld.composition import delta_bound
from sparsedp.accounting.pld.one_sided import OneSidedPld
from sparsedp.accounting.pld.pairs import Unresolved
from sparsedp.accounting.pld.profile import LARGEST_EPSILON, gaussian_mu, privacy_profile


def certain(sigma):
    """A Gaussian that the accountant does not recognise as one."""
    return MixtureOfGaussiansDpEvent(sigma, (1.0,), (1.0,))


@pytest.mark.parametrize("mu", [1e-3, 0.3, 2.0, 20.0])
@pytest.mark.parametrize("steps", [1, 100])
def test_gaussians_on_a_grid_have_the_deltas_of_the_formula(mu, steps):
    epsilons, deltas = privacy_profile([(certain(math.sqrt(steps) / mu), steps)])
    exact = np.array([analytic_gaussian_delta(epsilon, mu) for epsilon in epsilons])
    assert epsilons[0] == 0
    assert np.all(np.diff(epsilons) > 0)
    assert np.all(deltas >= exact * (1 - 1e-9))
    assert np.all(deltas <= 1.01 * exact + 1e-10)
    assert deltas[0] == pytest.approx(exact[0], rel=1e-3)
    assert deltas[-1] < 1e-10


EVENTS = {
    "training": [(PoissonSampledDpEvent(0.01, GaussianDpEvent(0.8)), 300), (GaussianDpEvent(20.0), 1)],
    "rarely sampled": [(PoissonSampledDpEvent(1e-3, GaussianDpEvent(0.8)), 50)],
    "laplace": [(LaplaceDpEvent(3.0), 5), (PureDpEvent(0.2), 3)],
}


@pytest.mark.parametrize("name", EVENTS)
def test_both_directions_count_and_the_profile_is_that_of_delta_of(name):
    epsilons, deltas = privacy_profile(EVENTS[name])
    for i in (0, len(epsilons) // 4):
        bound = delta_bound(EVENTS[name], float(epsilons[i]))
        assert 0.997 * bound - 1e-11 <= deltas[i] <= 1.01 * bound + 1e-10


def test_what_the_fft_may_round_away_is_added(monkeypatch):
    before = privacy_profile(EVENTS["training"])[1]
    monkeypatch.setattr(OneSidedPld, "noise", lambda *_: 1e-3)
    deltas = privacy_profile(EVENTS["training"])[1]
    assert deltas[-1] >= 1e-3
    assert deltas[len(deltas) // 2] >= 1e-3
    assert deltas[0] == pytest.approx(before[0] + 1e-3, rel=1e-3)


def test_nothing_and_everything():
    assert [each.tolist() for each in privacy_profile([])] == [[0.0], [0.0]]
    assert [each.tolist() for each in privacy_profile([(NonPrivateDpEvent(), 1)])] == [[0.0], [1.0]]


def test_events_too_far_apart_for_a_grid_still_have_a_bound(monkeypatch):
    def refuse(*_):
        raise Unresolved

    monkeypatch.setattr(profile, "_composed", refuse)
    epsilons, deltas = privacy_profile(EVENTS["training"])
    assert epsilons[-1] == pytest.approx(LARGEST_EPSILON)
    exact = [delta_bound(EVENTS["training"], float(epsilon)) for epsilon in epsilons[:30:15]]
    assert np.all(deltas[:30:15] >= 0.99 * np.array(exact))
    assert deltas[-1] < 1e-12


@pytest.mark.parametrize("epsilon", [300.0, 1e6, 1e12])
def test_losses_beyond_the_largest_epsilon(epsilon):
    epsilons, deltas = privacy_profile([(PureDpEvent(epsilon), 3)])
    assert epsilons[-1] <= LARGEST_EPSILON
    assert deltas[0] == pytest.approx(1, abs=1e-9)


def test_the_mu_of_gaussians():
    assert (
        gaussian_mu([(GaussianDpEvent(2.0), 4), (PoissonSampledDpEvent(1.0, GaussianDpEvent(1.0)), 3)]) == 2.0
    )
    assert gaussian_mu([]) == 0
    assert gaussian_mu([(certain(1.0), 1)]) is None
    assert gaussian_mu([(NonPrivateDpEvent(), 1)]) is None


@pytest.mark.parametrize("mu", [12.0, 20.0, 300.0, 4e4])
def test_a_gaussian_that_protects_nothing_has_deltas_of_at_most_one(mu):
    _, deltas = privacy_profile([(GaussianDpEvent(1 / mu), 1)])
    assert deltas[0] == pytest.approx(1, abs=1e-8)
    assert deltas.max() <= 1
