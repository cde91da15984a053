"""The whole privacy profile of a composition: a delta at each of many epsilons, from one loss distribution a direction."""

from __future__ import annotations

import math

import numpy as np

from sparsedp.accounting.analytic_gaussian import analytic_gaussian_delta, analytic_gaussian_epsilon
from sparsedp.accounting.events import Events
from sparsedp.accounting.pld.chernoff import chernoff_deltas
from sparsedp.accounting.pld.composition import directions, loss_rounding, total_variation
from sparsedp.accounting.pld.dominating import dominating_pairs
from sparsedp.accounting.pld.one_sided import OneSidedPld, Pairs, PldEstimate
from sparsedp.accounting.pld.pairs import Gaussian, NoPrivacy, Unresolved
from sparsedp.accounting.pld.tilted import TiltedLoss
from sparsedp.core.arrays import F64, weighted_sum

LARGEST_EPSILON = 600.0
"""No profile goes beyond it: e^600 is still a float."""

_POINTS = 256
_PRECISION = 3e-4  # of the standard deviation of the loss: what rounding to the grid may move an epsilon by
_LEAST_DELTA = 1e-12
_UNPLACED = 1e-15  # P-mass that may go to losses off the grid
_ROUNDING = 1e-9  # of a delta, in its sum over the grid
_WIDE = 8.0  # standard deviations of the loss that are its bulk


def gaussian_mu(events: Events) -> float | None:
    """The mu of events that are together one Gaussian, or nothing at all (0); None for all others."""
    try:
        pairs = dominating_pairs(events)
    except NoPrivacy:
        return None
    if not pairs:
        return 0.0
    (first, count), *others = pairs
    return first.mu * math.sqrt(count) if isinstance(first, Gaussian) and not others else None


def privacy_profile(events: Events) -> tuple[F64, F64]:
    """(epsilons, deltas): ascending epsilons from 0, and an upper bound on the delta at each of them.

    Guarantee: add-or-remove-one; each delta is at least that of the composition in both directions, since losses are
    rounded as for `epsilon_of` and what the FFT may round away is added. A converged one is off by about 3e-4 of the
    loss's standard deviation in epsilon, and 1e-12 in delta; where that takes too large a grid, it is still a bound.
    """
    mu = gaussian_mu(events)
    if mu is not None:
        return _of_gaussian(mu)
    try:
        pairs = dominating_pairs(events)
    except NoPrivacy:
        return np.zeros(1), np.ones(1)
    unsure = loss_rounding(pairs)
    try:
        sides = [_composed(pairs, reverse) for reverse in directions(pairs)]
    except Unresolved:
        epsilons = np.concatenate([np.zeros(1), np.geomspace(1e-3, LARGEST_EPSILON, 60)])
        known = np.maximum(epsilons - unsure, 0.0)
        bounds = [chernoff_deltas(pairs, reverse, known) for reverse in directions(pairs)]
    else:
        epsilons = _epsilons(sides)
        known = np.maximum(epsilons - unsure, 0.0)
        bounds = [loss.deltas_at(known) * (1 + _ROUNDING) + noise for loss, noise in sides]
    below_zero = np.maximum(unsure - epsilons, 0.0)
    deltas = np.minimum(np.max(bounds, axis=0) + below_zero, total_variation(pairs))
    return epsilons, np.minimum.accumulate(deltas)


def _of_gaussian(mu: float) -> tuple[F64, F64]:
    last = min(analytic_gaussian_epsilon(_LEAST_DELTA, min(mu, 1e4)), LARGEST_EPSILON)
    epsilons = np.linspace(0.0, last, _POINTS) if last > 0 else np.zeros(1)
    exact = [analytic_gaussian_delta(float(epsilon), mu) for epsilon in epsilons]
    return epsilons, np.minimum(np.array(exact) * (1 + _ROUNDING), 1.0)


def _composed(pairs: Pairs, reverse: bool) -> tuple[TiltedLoss, float]:
    """The composition in one direction without a tilt, and the mass that the FFT's rounding may amount to."""
    estimate = PldEstimate.of(pairs, reverse=reverse, log_delta=math.log(_LEAST_DELTA))
    spread = math.sqrt(max(estimate.sketch.moments(0.0)[1], 1e-300))
    grids = estimate.grids(epsilon=spread, saddle=0.0, decay=1 / spread, tolerance=_PRECISION * spread)
    log_unplaced = math.log(_UNPLACED)
    one_sided = OneSidedPld(estimate, grids, 0.0, log_unplaced, log_unplaced, log_magnified=0.0)
    loss, grids = one_sided.compose_affordably(grids)
    return loss, one_sided.noise(grids)


def _epsilons(sides: list[tuple[TiltedLoss, float]]) -> F64:
    """Where to read the profile: 0, evenly over the bulk of the losses, and evenly to where nothing is left of delta."""
    starts, stops, high = [], [], 0.0
    for loss, noise in sides:
        above = np.cumsum(loss.weights[::-1])[::-1]
        last = int(np.searchsorted(-above, -max(_LEAST_DELTA, noise)))
        high = max(high, float(loss.losses[min(last, len(loss.losses) - 1)]))
        mean = weighted_sum(loss.weights, loss.losses)
        reach = _WIDE * math.sqrt(weighted_sum(loss.weights, (loss.losses - mean) ** 2))
        starts.append(mean - reach)
        stops.append(mean + reach)
    high = min(high, LARGEST_EPSILON)
    low = min(max(min(starts), 0.0), high / 2)
    bulk = np.linspace(low, min(max(max(stops), high / _POINTS), high), _POINTS)
    return np.unique(np.concatenate([np.zeros(1), bulk, np.linspace(low, high, _POINTS)]))
