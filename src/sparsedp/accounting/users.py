"""User-level privacy: each user has a capped number of rows, and rows are Poisson sampled independently."""

from __future__ import annotations

from bisect import bisect_left

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from sparsedp.accounting.events import MixtureOfGaussiansDpEvent
from sparsedp.accounting.statement import ADD_OR_REMOVE_ONE, PrivacyStatement
from sparsedp.core.validation import check_count, check_positive, check_rate

_NEGLIGIBLE = 1e-30
_MOST_ROWS = 10**9
_MOST_COUNTS = 500


def user_step_event(
    noise_multiplier: float, sampling_rate: float, rows_per_user: int
) -> MixtureOfGaussiansDpEvent:
    """A Gaussian step on a Poisson batch of examples, as seen by a user of at most `rows_per_user` rows.

    Guarantee: add-or-remove-one *user*; releases the noisy sum of clipped examples (noise multiplier with
    respect to one example). Proof: of the user's rows Binomial(rows, rate) are in the batch, each moves the
    sum by at most the clipping norm, so the pair is dominated by a mixture of Gaussians with those shifts
    (Choquette-Choo et al. 2023, corollary 4.7); more rows shift more. Counts of negligible probability are rounded
    up: low ones to the first that is not negligible, high ones to all rows. Where more than 500 counts remain, each
    is rounded up by at most 0.05 standard deviations.
    """
    sigma = check_positive("noise_multiplier", noise_multiplier)
    rate = check_rate("sampling_rate", sampling_rate)
    rows = check_count("rows_per_user", rows_per_user, maximum=_MOST_ROWS)
    counts, probabilities = _sampled_counts(rows, rate)
    return MixtureOfGaussiansDpEvent(
        sigma, tuple(counts.astype(float).tolist()), tuple((probabilities / probabilities.sum()).tolist())
    )


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
