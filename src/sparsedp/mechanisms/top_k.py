"""The k heaviest rows of a histogram, by three mechanisms; untouched rows compete through order statistics.

All three add independent noise to every one of ``size`` rows and return the ids of the ``k`` largest, with
exactly that distribution, in O(touched + k) time and memory. Noisy counts are integers of a public lattice, ties
fall at random (``choose_largest``). They differ in the noise and in its price:

- ``top_k_gaussian``: one Gaussian event for the whole histogram, for any k. The one to use.
- ``top_k_laplace``: pure epsilon, for any k, but the noise grows with the l1 sensitivity.
- ``top_k_gumbel``: the one-shot selection of FEST's appendix B.1, whose price grows with k.
"""

from __future__ import annotations

from numpy.typing import ArrayLike

from sparsedp.accounting.events import DpEvent
from sparsedp.core.arrays import I64
from sparsedp.core.observing import draw
from sparsedp.core.validation import check_epsilon, check_positive
from sparsedp.mechanisms.exponential import exponential_top_k
from sparsedp.mechanisms.gaussian import gaussian_event
from sparsedp.mechanisms.histogram import check_choice, check_histogram
from sparsedp.mechanisms.order_statistics import (
    SPARE,
    cells_of,
    choose_largest,
    largest_laplaces,
    largest_normals,
)
from sparsedp.randomness import Stream, noise_lattice, round_gaussian, round_laplace


@draw
def top_k_gaussian(
    ids: ArrayLike, counts: ArrayLike, size: int, *, k: int, std: float, stream: Stream
) -> I64:
    """The sorted ids of the ``k`` largest ``counts + N(0, std^2)`` over all ``size`` rows.

    Guarantee: if one example moves the joint histogram by at most ``C`` in l2 (``sqrt(p)`` for p features
    with one value each), the event is ``Gaussian(std / C)`` under the same adjacency: ``std = C / mu`` is
    mu-GDP. Released: the set of ids, and any other function of the noisy histogram would be free.
    Proof: post-processing of the Gaussian mechanism on the histogram.
    """
    touched, weights, size = check_histogram(ids, counts, size)
    k, lattice = check_choice(k, size), noise_lattice(check_positive("std", std))
    keys = round_gaussian(weights, std=std, lattice=lattice, stream=stream)
    others = largest_normals(size - touched.size, k=k + SPARE, stream=stream)
    return choose_largest(touched, keys, cells_of(others, std / lattice), size, k=k, stream=stream)


def top_k_gaussian_event(*, std: float, sensitivity: float) -> DpEvent:
    """One Gaussian on the joint histogram; ``sensitivity`` is C, in l2."""
    return gaussian_event(std=std, sensitivity=sensitivity)


def top_k_laplace(
    ids: ArrayLike,
    counts: ArrayLike,
    size: int,
    *,
    k: int,
    epsilon: float,
    sensitivity: float,
    stream: Stream,
) -> I64:
    """The sorted ids of the ``k`` largest ``counts + Laplace(sensitivity / epsilon)`` over all ``size`` rows.

    Guarantee: epsilon-DP, if one example moves the joint histogram by at most ``sensitivity`` in l1 (p for
    p features with one value each, add-or-remove-one; 2p replace-one). Event: ``laplace_event``. Released:
    the set of ids.
    Proof: post-processing of the Laplace mechanism on the histogram.
    """
    touched, weights, size = check_histogram(ids, counts, size)
    k = check_choice(k, size)
    scale = check_positive("sensitivity", sensitivity) / check_epsilon(epsilon)
    lattice = noise_lattice(scale)
    keys = round_laplace(weights, scale=scale, lattice=lattice, stream=stream)
    others = largest_laplaces(size - touched.size, k=k + SPARE, stream=stream)
    return choose_largest(touched, keys, cells_of(others, scale / lattice), size, k=k, stream=stream)


def top_k_gumbel(
    ids: ArrayLike, counts: ArrayLike, size: int, *, k: int, epsilon: float, stream: Stream
) -> I64:
    """The sorted ids of the ``k`` largest ``counts + Gumbel(1 / epsilon)`` over all ``size`` rows (peeling).

    Guarantee: add-or-remove-one, each count moves by at most 1 and all the same way: the k draws are
    ``epsilon``-bounded-range each, together (k epsilon)-DP. Event: ``exponential_event(draws=k, ...)``.
    Released: the set of ids.
    Proof: adding Gumbel(1/eps) once and taking the k largest is drawing k rows one after another with
    weights ``e^(eps count)``, without replacement (Yellott 1977; Durfee and Rogers 2019). A common factor of
    the weights cancels, so the log-probabilities of one draw move within an interval of length eps. k eps
    is reached: a row heavier than all others together is left out with e^(-k eps) of the probability when
    its count grows by one. FEST claims epsilon for any k.
    """
    # All counts move the same way, so the moves spread over 1, which is twice a sensitivity of 1/2.
    return exponential_top_k(ids, counts, size, k=k, epsilon=epsilon, sensitivity=0.5, stream=stream)
