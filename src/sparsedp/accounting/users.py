"""Privacy of users, each with a capped number of rows, where examples are sampled one by one."""

from __future__ import annotations

import numpy as np
from scipy.stats import binom

from sparsedp.accounting.events import MixtureOfGaussiansDpEvent
from sparsedp.accounting.statement import ADD_OR_REMOVE_ONE, PrivacyStatement
from sparsedp.accounting.validation import check_count, check_positive, check_rate

_NEGLIGIBLE = 1e-30


def user_step_event(
    noise_multiplier: float, sampling_rate: float, rows_per_user: int
) -> MixtureOfGaussiansDpEvent:
    """A Gaussian step on a Poisson batch of examples, as seen by a user of at most `rows_per_user` rows.

    Guarantee: add-or-remove-one *user*; releases the noisy sum of clipped examples (noise multiplier with
    respect to one example). Proof: of the user's rows Binomial(rows, rate) are in the batch, each moves the
    sum by at most the clipping norm, so the pair is dominated by a mixture of Gaussians with those shifts
    (Choquette-Choo et al. 2023, corollary 4.7); fewer rows shift less. Counts so rare that they do not
    matter are taken for the largest one.
    """
    sigma = check_positive("noise_multiplier", noise_multiplier)
    rate = check_rate("sampling_rate", sampling_rate)
    rows = check_count("rows_per_user", rows_per_user)
    counts = np.arange(rows + 1)
    counts = counts[: 1 + int(np.argmax(binom.sf(counts, rows, rate) < _NEGLIGIBLE))]
    probabilities = binom.pmf(counts, rows, rate)
    if counts[-1] < rows:
        probabilities = np.append(probabilities, binom.sf(counts[-1], rows, rate))
        counts = np.append(counts, rows)
    return MixtureOfGaussiansDpEvent(
        sigma, tuple(counts.astype(float).tolist()), tuple((probabilities / probabilities.sum()).tolist())
    )


def user_unit(rows_per_user: int) -> str:
    """The privacy unit, in the words of a `PrivacyStatement`."""
    return f"user (at most {check_count('rows_per_user', rows_per_user)} rows)"


def user_statement(
    epsilon: float, delta: float, rows_per_user: int, released: str, *, private: bool = True
) -> PrivacyStatement:
    """A guarantee for users; it holds only where the cap on rows was enforced, and says so."""
    return PrivacyStatement(
        epsilon,
        delta,
        ADD_OR_REMOVE_ONE,
        user_unit(rows_per_user),
        released,
        private,
        (f"every user's rows were cut to {rows_per_user} before training",),
    )
