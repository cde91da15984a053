"""Distinguishing audits: empirical lower bounds on epsilon.

An (epsilon, delta)-DP mechanism satisfies ``P(E) <= e^eps Q(E) + delta`` for every event E and both orders
of two neighbouring data sets. So one event that is much likelier on one of them refutes a claim. Where the
outputs can be listed with their probabilities, ``exact_epsilon`` gives the epsilon of the pair itself;
where they can only be drawn, ``audit`` gives a lower bound that is wrong with a stated probability.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq
from scipy.special import betainccinv, betaincinv

from sparsedp.core.validation import check_count, check_non_negative, check_probability
from sparsedp.randomness import Stream

Data = TypeVar("Data")
Statistics = Callable[[Data, Stream, int], ArrayLike]
"""(data, stream, runs) -> one number for each of so many independent runs of the mechanism on the data."""

CONFIDENCE = 1.0 - 1e-9
_CANDIDATES = 512


@dataclass(frozen=True)
class AuditResult:
    """The result of an audit of one pair of data sets.

    ``lower_bound`` holds for the epsilon of the mechanism at ``delta``, under the adjacency by which the two
    data sets are neighbours, except with probability ``1 - confidence``. A bound below the claim proves
    nothing; a bound above it refutes the claim.
    """

    lower_bound: float
    claimed: float
    delta: float
    confidence: float
    event: str
    hits: tuple[int, int]
    runs: int

    @property
    def refuted(self) -> bool:
        """Whether the claim is wrong (but for ``1 - confidence``)."""
        return self.lower_bound > self.claimed

    def __str__(self) -> str:
        verdict = "REFUTED" if self.refuted else "not refuted"
        return (
            f"epsilon >= {self.lower_bound:.4g} at delta = {self.delta:g} for this pair of neighbours "
            f"(confidence 1 - {1.0 - self.confidence:.1g}; {self.event}: {self.hits[0]} against "
            f"{self.hits[1]} of {self.runs} runs); claimed {self.claimed:.4g}: {verdict}"
        )


def epsilon_lower_bound(
    hits: ArrayLike, other_hits: ArrayLike, *, runs: int, delta: float, confidence: float = CONFIDENCE
) -> NDArray[np.float64]:
    """A lower bound on epsilon from how often an event occurred on two neighbours, in ``runs`` runs on each.

    Clopper-Pearson on both probabilities, half of ``1 - confidence`` each: with ``p`` at least ``p_low`` and
    ``q`` at most ``q_high``, epsilon is at least ``ln((p_low - delta) / q_high)``. Elementwise.
    """
    runs = check_count("runs", runs)
    delta = check_probability("delta", delta)
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"confidence must lie strictly between 0 and 1, got {confidence}")
    first, second = _counts("hits", hits, runs), _counts("other_hits", other_hits, runs)
    miss = (1.0 - confidence) / 2.0
    # The bounds are quantiles of beta laws; at the ends, where a parameter would be zero, they are 0 and 1.
    p_low = np.where(first > 0, betaincinv(np.maximum(first, 1), runs - first + 1, miss), 0.0)
    q_high = np.where(second < runs, betainccinv(second + 1, np.maximum(runs - second, 1), miss), 1.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        bound = np.log(np.maximum(p_low - delta, 0.0)) - np.log(q_high)
    return np.asarray(np.maximum(bound, 0.0))


def audit(
    mechanism: Statistics[Data],
    pair: tuple[Data, Data],
    *,
    runs: int,
    delta: float,
    claimed: float,
    stream: Stream,
    confidence: float = CONFIDENCE,
) -> AuditResult:
    """Run ``mechanism`` on both data sets of ``pair`` and bound epsilon at ``delta`` from below.

    ``mechanism(data, stream, runs)`` returns one number per independent run, a statistic of the output; use
    ``repeated`` for a mechanism that runs once a call. The events tried are "statistic >= t" and
    "statistic <= t", in both orders of the pair. The event is chosen on the first half of the runs and
    bounded on the second, so that choosing it among many costs no confidence.
    """
    half = check_count("runs", runs, minimum=2) // 2
    claimed = check_non_negative("claimed", claimed)
    exploring, confirming = (
        (_statistics(mechanism, pair[0], stream, half), _statistics(mechanism, pair[1], stream, half))
        for _ in range(2)
    )
    event = _best_event(exploring, delta, confidence)
    hits = event.count(confirming)
    bound = epsilon_lower_bound(*hits, runs=half, delta=delta, confidence=confidence)
    return AuditResult(float(bound), claimed, delta, confidence, str(event), hits, half)


def repeated(
    mechanism: Callable[[Data, Stream], Any], statistic: Callable[[Any], float] = float
) -> Statistics[Data]:
    """A mechanism that runs once per call, and a statistic of its output, as ``audit`` takes them."""

    def statistics(data: Data, stream: Stream, runs: int) -> NDArray[np.float64]:
        return np.array([statistic(mechanism(data, stream)) for _ in range(runs)], dtype=np.float64)

    return statistics


def exact_epsilon(first: ArrayLike, second: ArrayLike, *, delta: float = 0.0) -> float:
    """The smallest epsilon for which two discrete output distributions are (epsilon, delta)-close.

    ``first`` and ``second`` list the probabilities of the same outputs under two neighbours. Both orders are
    taken. At delta = 0 this is the largest log-ratio, infinite where an output is possible only once.
    """
    p, q = _distribution("first", first), _distribution("second", second)
    if p.shape != q.shape:
        raise ValueError(f"second must list the same outputs as first, got {q.size} and {p.size}")
    delta = check_probability("delta", delta)
    return max(_one_sided_epsilon(p, q, delta), _one_sided_epsilon(q, p, delta))


def hockey_stick(first: ArrayLike, second: ArrayLike, epsilon: float) -> float:
    """The smallest delta at ``epsilon`` in this order: ``sum of max(first - e^epsilon second, 0)``."""
    p, q = _distribution("first", first), _distribution("second", second)
    return float(np.maximum(p - math.exp(epsilon) * q, 0.0).sum())


@dataclass(frozen=True)
class _Event:
    """``statistic >= threshold`` (or <=), on the first data set against the second (or the other way)."""

    threshold: float
    above: bool
    swapped: bool

    def count(self, samples: tuple[NDArray[np.float64], NDArray[np.float64]]) -> tuple[int, int]:
        """How often it happened: where it should be likely, and where it should be rare."""
        likely, rare = samples[::-1] if self.swapped else samples
        return self._hits(likely), self._hits(rare)

    def _hits(self, sample: NDArray[np.float64]) -> int:
        return int(np.count_nonzero(sample >= self.threshold if self.above else sample <= self.threshold))

    def __str__(self) -> str:
        order = "second against first data set" if self.swapped else "first against second data set"
        return f"statistic {'>=' if self.above else '<='} {self.threshold:.4g}, {order}"


def _best_event(
    samples: tuple[NDArray[np.float64], NDArray[np.float64]], delta: float, confidence: float
) -> _Event:
    first, second = np.sort(samples[0]), np.sort(samples[1])
    thresholds = _candidates(first, second)
    runs = first.size
    best, best_bound = _Event(float(thresholds[0]), above=True, swapped=False), -1.0
    for above in (True, False):
        counts = [_ranks(sample, thresholds, above) for sample in (first, second)]
        for swapped in (False, True):
            likely, rare = counts[::-1] if swapped else counts
            bounds = epsilon_lower_bound(likely, rare, runs=runs, delta=delta, confidence=confidence)
            at = int(np.argmax(bounds))
            if bounds[at] > best_bound:
                best, best_bound = _Event(float(thresholds[at]), above, swapped), float(bounds[at])
    return best


def _candidates(first: NDArray[np.float64], second: NDArray[np.float64]) -> NDArray[np.float64]:
    """Thresholds to try: evenly spaced ranks of both samples, and finely spaced ones in their tails."""
    runs = first.size
    even = np.linspace(0, runs - 1, _CANDIDATES)
    tail = np.geomspace(1, runs, _CANDIDATES) - 1
    ranks = np.unique(np.concatenate([even, tail, runs - 1 - tail]).astype(np.int64))
    return np.unique(np.concatenate([first[ranks], second[ranks]]))


def _ranks(ordered: NDArray[np.float64], thresholds: NDArray[np.float64], above: bool) -> NDArray[np.int64]:
    if above:
        return ordered.size - np.searchsorted(ordered, thresholds, side="left")
    return np.searchsorted(ordered, thresholds, side="right")


def _statistics(mechanism: Statistics[Data], data: Data, stream: Stream, runs: int) -> NDArray[np.float64]:
    values = np.asarray(mechanism(data, stream, runs), dtype=np.float64)
    if values.shape != (runs,) or np.isnan(values).any():
        raise ValueError(f"mechanism must return {runs} numbers, got shape {values.shape} or a NaN")
    return values


def _counts(name: str, values: ArrayLike, runs: int) -> NDArray[np.int64]:
    counts = np.asarray(values)
    if not np.issubdtype(counts.dtype, np.integer) or np.any((counts < 0) | (counts > runs)):
        raise ValueError(f"{name} must be whole numbers between 0 and runs = {runs}")
    return counts.astype(np.int64)


def _distribution(name: str, values: ArrayLike) -> NDArray[np.float64]:
    probabilities = np.asarray(values, dtype=np.float64).ravel()
    if not (np.all(probabilities >= 0.0) and abs(probabilities.sum() - 1.0) < 1e-9):
        raise ValueError(f"{name} must be probabilities that sum to 1")
    return probabilities


def _one_sided_epsilon(p: NDArray[np.float64], q: NDArray[np.float64], delta: float) -> float:
    if float(p[q == 0.0].sum()) > delta:
        return math.inf
    if hockey_stick(p, q, 0.0) <= delta:
        return 0.0
    both = (p > 0.0) & (q > 0.0)
    worst = float(np.max(np.log(p[both]) - np.log(q[both])))
    if delta == 0.0:
        return worst
    return float(brentq(lambda epsilon: hockey_stick(p, q, epsilon) - delta, 0.0, worst))
