"""User-level privacy: each user has a capped number of rows, and rows are Poisson sampled independently."""

from __future__ import annotations

from bisect import bisect_left

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from sparsedp.accounting.events import (
    DpEvent,
    Events,
    GaussianDpEvent,
    LaplaceDpEvent,
    MixtureOfGaussiansDpEvent,
    PoissonSampledDpEvent,
    PureDpEvent,
)
from sparsedp.accounting.statement import ADD_OR_REMOVE_ONE, PrivacyStatement
from sparsedp.core.validation import check_count, check_positive, check_rate

_NEGLIGIBLE = 1e-30
_MOST_ROWS = 10**9
_MOST_COUNTS = 500


def user_step_event(
    noise_multiplier: float, sampling_rate: float, rows_per_user: int
) -> MixtureOfGaussiansDpEvent:
    """A Gaussian step on a Poisson batch of examples, as seen by a user of at most `rows_per_user` rows.

    Guarantee: add-or-remove-one *user*; releases the noisy sum of clipped examples, or several Gaussian releases in
    turn that together have this noise multiplier with respect to one example (AdaFEST: the map, then the gradient).

    Proof: given the others' sampled rows, let Q be the output's law without the user and P_S that with the set S of its
    rows in the batch. k = |S| rows move each release by at most k times what one row does, so the pair (P_S, Q) is
    dominated by (N(k, sigma^2), N(0, sigma^2)), also where a release depends on earlier ones (Dong, Roth and Su 2022,
    theorem 4): under Q, the ratio dP_S/dQ is at most exp(k z - k^2/2 in units of sigma) in convex order, z normal. The
    batch's ratio is the mean of dP_S/dQ over S. In convex order a mean is at most that of comonotone terms with larger
    laws (Dhaene et al. 2002, theorem 7); these exponentials all increase in z, so they are comonotone as they stand, and
    their mean is the ratio of the mixture with Binomial(rows, rate) shifts. Hockey-stick divergences of both directions
    are means of convex functions of the ratio, and jointly convex over the others' rows. One release alone:
    Choquette-Choo et al. 2023, corollary 4.7. More rows shift more.

    Counts of negligible probability are rounded up: low ones to the first that is not negligible, high ones to all
    rows. Where more than 500 counts remain, each is rounded up by at most 0.05 standard deviations.
    """
    sigma = check_positive("noise_multiplier", noise_multiplier)
    rate = check_rate("sampling_rate", sampling_rate)
    rows = check_count("rows_per_user", rows_per_user, maximum=_MOST_ROWS)
    counts, probabilities = _sampled_counts(rows, rate)
    return MixtureOfGaussiansDpEvent(
        sigma, tuple(counts.astype(float).tolist()), tuple((probabilities / probabilities.sum()).tolist())
    )


def events_of_users(events: Events, rows_per_user: int) -> list[tuple[DpEvent, int]]:
    """What was spent per example, as seen by a user of at most `rows_per_user` rows.

    A step on a Poisson batch becomes `user_step_event`. A release of all data moves by at most `rows_per_user` times
    what one row moves it, so the noise multiplier of a Gaussian or a Laplace shrinks by that; the epsilon of a pure
    event grows by it. Other events are refused.
    """
    rows = check_count("rows_per_user", rows_per_user, maximum=_MOST_ROWS)
    converted: list[tuple[DpEvent, int]] = []
    for event, count in events:
        if isinstance(event, GaussianDpEvent):
            of_user: DpEvent = GaussianDpEvent(event.noise_multiplier / rows)
        elif isinstance(event, LaplaceDpEvent):
            of_user = LaplaceDpEvent(event.noise_multiplier / rows)
        elif isinstance(event, PureDpEvent):
            of_user = PureDpEvent(event.epsilon * rows)
        elif isinstance(event, PoissonSampledDpEvent) and isinstance(event.event, GaussianDpEvent):
            of_user = user_step_event(event.event.noise_multiplier, event.sampling_probability, rows)
        else:
            raise ValueError(
                f"rows_per_user: the price of {type(event).__name__} for a user is not known; only Gaussian releases, of "
                "Poisson batches or of all data, Laplace and pure ones can be converted"
            )
        converted.append((of_user, count))
    return converted


def _sampled_counts(rows: int, rate: float) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """How many of a user's rows are in a batch, rounded up: ascending counts, and their probabilities."""
    law = binom(rows, rate)
    lowest = bisect_left(range(rows), True, key=lambda count: law.cdf(count) >= _NEGLIGIBLE)
    highest = bisect_left(range(rows), True, key=lambda count: law.sf(count) < _NEGLIGIBLE)
    if highest - lowest < _MOST_COUNTS:
        stops = np.arange(lowest, highest + 1)
    else:
        stops = np.unique(np.linspace(lowest, highest, _MOST_COUNTS).astype(np.int64))
    if stops[-1] < rows:
        stops = np.append(stops, rows)
    # The probability of the counts above one stop and up to the next, from the nearer tail.
    below = np.diff(law.cdf(stops), prepend=0.0)
    above = -np.diff(law.sf(stops), prepend=1.0)
    return stops, np.where(stops <= rows * rate, below, above)


def user_unit(rows_per_user: int) -> str:
    """The privacy unit, in the words of a `PrivacyStatement`."""
    return f"user (at most {check_count('rows_per_user', rows_per_user)} rows)"


def user_statement(
    epsilon: float, delta: float, rows_per_user: int, released: str, *, private: bool = True
) -> PrivacyStatement:
    """A guarantee for users; a note says that it requires the cap on rows."""
    return PrivacyStatement(
        epsilon,
        delta,
        ADD_OR_REMOVE_ONE,
        user_unit(rows_per_user),
        released,
        private,
        (f"every user's rows were cut to {rows_per_user} before training",),
    )
