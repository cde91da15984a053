"""The trade-off between an attacker's error rates (f-DP), and what follows from it: advantage, mu, groups."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, partial

import numpy as np
from scipy.special import ndtri

from sparsedp.accounting.events import Events
from sparsedp.accounting.pld.profile import LARGEST_EPSILON, gaussian_mu, privacy_profile
from sparsedp.core.arrays import F64
from sparsedp.core.validation import (
    check_count,
    check_delta,
    check_non_negative,
    check_number,
    check_probability,
)

Pair = tuple[float, float]
Profile = Iterable[Sequence[float]]
"""Pairs (epsilon, delta), each of which holds."""

REPORTED_RATES = (0.001, 0.01)
"""The false positive rates at which statements say how many true positives there may be."""

LARGEST_GROUP = 10**6
"""Groups have at most this many members."""

_POINTS = 400
_WRITTEN = 24  # points of a profile in JSON
_LAST_DIGITS = 2.0**-50  # of differences of probabilities, which a delta must not lose
_SHRINKAGE = 1e-12  # of a mu: solutions are moved this far, relatively, to the safe side


class TradeOffCurve:
    """The least false negative rate of any attacker who is to say whether one unit was in the data, by its false positive rate.

    Guarantee: no test of one neighbour against the other, in either direction, has error rates below the curve f:
    what is released is f-DP (Dong, Roth and Su 2022). Proof: whoever accepts on a set S has P(S) <= e^epsilon Q(S) +
    delta, so that f(x) >= 1 - delta - e^epsilon x and, with the neighbours exchanged, f(x) >= e^-epsilon (1 - delta -
    x), for every pair (epsilon, delta) of the profile. The curve is the largest of these lines and 0: convex, at most
    1 - x, its own inverse; and 1 - delta - e^epsilon x touches it for the curve's own delta at every epsilon.

    `profile` gives pairs (epsilon, delta) that hold, or a function that finds them when they are first needed.
    """

    def __init__(self, profile: Profile | Callable[[], Profile]) -> None:
        self._source = profile if callable(profile) else _checked(profile)

    @cached_property
    def _given(self) -> list[Pair]:
        return _checked(self._source()) if callable(self._source) else self._source

    def with_point(self, epsilon: float, delta: float) -> TradeOffCurve:
        """The curve with one more pair that holds; nothing is computed yet."""
        return TradeOffCurve(partial(_joined, self, _checked([(epsilon, delta)])))

    @classmethod
    def worst_of(cls, curves: Sequence[TradeOffCurve]) -> TradeOffCurve:
        """What holds for all of these mechanisms: of their deltas at an epsilon, the largest; computed when first read."""
        return cls(partial(_largest_deltas, curves)) if len(curves) > 1 else curves[0]

    @cached_property
    def _tangents(self) -> tuple[F64, F64]:
        """Epsilons from 0 and deltas, of which every one is a line of the curve.

        Delta is convex in e^epsilon, so that a chord of two points bounds it too: a point above one is replaced by
        it. At epsilon 0 the chord is that from -epsilon, where delta is 1 - e^-epsilon (1 - delta), to epsilon.
        """
        epsilons, deltas = np.array(self._given).T
        x = np.expm1(epsilons)
        at_zero = float(np.min((x + 2 * deltas) / (x + 2)))
        hull = [(0.0, at_zero)]
        for point in zip(x[epsilons > 0].tolist(), deltas[epsilons > 0].tolist(), strict=True):
            if point[1] >= hull[-1][1]:
                continue
            while len(hull) > 1 and _slope(hull[-2], hull[-1]) >= _slope(hull[-1], point):
                hull.pop()
            hull.append(point)
        return np.log1p([x for x, _ in hull]), np.array([delta for _, delta in hull])

    @cached_property
    def corners(self) -> tuple[F64, F64]:
        """(false positive rates, false negative rates) where the lines of the curve meet; it is straight between them."""
        epsilons, deltas = self._tangents
        x = np.expm1(epsilons)
        # Lines that nearly coincide meet somewhere; the curve is its own inverse, so not beyond its middle.
        rates = np.minimum(-np.diff(deltas) / np.diff(x), (1 - deltas[0]) / 2)
        left = np.append(rates, 0.0)[::-1]
        right = np.maximum(1 - deltas - np.exp(epsilons) * np.append(rates, 0.0), 0.0)[::-1]
        right = np.minimum.accumulate(np.maximum(right, left))
        return np.concatenate([left, right[::-1], [1.0]]), np.concatenate([right, left[::-1], [0.0]])

    def __call__(self, false_positive_rate: float) -> float:
        """The least false negative rate at this false positive rate."""
        rate = check_probability("false_positive_rate", false_positive_rate)
        return float(np.interp(rate, *self.corners))

    def true_positive_rate(self, false_positive_rate: float) -> float:
        """The largest true positive rate at this false positive rate."""
        return 1 - self(false_positive_rate)

    @property
    def advantage(self) -> float:
        """The largest difference of true and false positive rate: the total variation, which is the delta at epsilon 0."""
        return float(self._tangents[1][0])

    @property
    def last_epsilon(self) -> float:
        """The largest epsilon whose delta the curve knows; beyond it delta stays as it is there."""
        return float(self._tangents[0][-1])

    def delta_at(self, epsilon: float) -> float:
        """The delta that follows from the curve at `epsilon`."""
        epsilon = min(check_non_negative("epsilon", epsilon), LARGEST_EPSILON)
        return float(self._deltas_at(np.array([epsilon]))[0])

    def _deltas_at(self, at: F64) -> F64:
        """The curve's delta at each of these epsilons: on the chord, all of whose terms are positive, of two lines."""
        epsilons, deltas = self._tangents
        known, x = np.expm1(epsilons), np.expm1(np.minimum(at, epsilons[-1]))
        after = np.clip(np.searchsorted(known, x), 1, max(len(known) - 1, 1))
        if len(known) == 1:
            return np.full(len(x), deltas[0])
        width = known[after] - known[after - 1]
        before = (known[after] - x) / width
        return np.asarray(before * deltas[after - 1] + (x - known[after - 1]) / width * deltas[after])

    def epsilon_at(self, delta: float) -> float:
        """The least epsilon that follows from the curve at `delta`; infinite where none does."""
        delta = check_delta(delta)
        epsilons, deltas = self._tangents
        if deltas[-1] > delta:
            return math.inf
        last = int(np.argmax(deltas <= delta))
        if last == 0:
            return 0.0
        x = np.expm1(epsilons[last - 1 : last + 1])
        share = (deltas[last - 1] - delta) / (deltas[last - 1] - deltas[last])
        return float(np.log1p(x[0] + share * (x[1] - x[0])))

    def mu(self, delta: float) -> float:
        """The least mu for which no test does better than one of N(0, 1) against N(mu, 1), up to `delta`.

        That is: f(x) >= G(x) - delta at every rate x, with G the curve of the two Gaussians; or, in other words, the
        delta at every epsilon is at most that of the Gaussians plus `delta`. Proof that the corners suffice: between
        two of them f is straight and G convex, so that G - f is largest at one of them.
        """
        delta = check_probability("delta", delta)
        false_positives, false_negatives = self.corners
        # Less what a difference of probabilities may be off by; at 0 it is none, and at 1 both curves end in 0.
        reached = false_negatives + delta - np.where(false_positives > 0, _LAST_DIGITS, 0.0)
        short = (reached < 1) & (false_positives < 1)
        if not short.any():
            return 0.0
        needed = -ndtri(false_positives[short]) - ndtri(np.maximum(reached[short], 0.0))
        return max(float(needed.max()), 0.0) * (1 + _SHRINKAGE)

    def group(self, size: int) -> TradeOffCurve:
        """The curve for neighbours that are `size` changes apart: units that come or go, one after the other.

        Proof: a test with the false positive rate x on the first data set accepts the next one with probability at
        most g(x) = 1 - f(x), hence the last one with at most g(g(... g(x))) (Dong, Roth and Su 2022, theorem 2.14).
        """
        size = check_count("size", size, maximum=LARGEST_GROUP)
        return self if size == 1 else TradeOffCurve(partial(_grouped, self, size))

    def to_json(self, delta: float) -> dict[str, object]:
        """Advantage, true positive rates, `mu` up to `delta`, and points of the profile, enough for a curve to be made again.

        A mu that is infinite is None: there is none.
        """
        epsilons, deltas = self._tangents
        evenly = np.linspace(0, len(epsilons) - 1, min(_WRITTEN, len(epsilons))).astype(np.int64)
        # With the lines that decide the rates, a curve made again has the same rates.
        deciding = [int(np.argmax(1 - deltas - np.exp(epsilons) * rate)) for rate in REPORTED_RATES]
        chosen = np.union1d(evenly, deciding)
        return {
            "advantage": self.advantage,
            "true_positive_rates": {f"{rate:g}": self.true_positive_rate(rate) for rate in REPORTED_RATES},
            "mu": mu if math.isfinite(mu := self.mu(delta)) else None,
            "profile": [[float(epsilons[i]), float(deltas[i])] for i in chosen],
        }


def trade_off_curve(events: Events) -> TradeOffCurve:
    """The curve of all these events together, add-or-remove-one; computed when something is first read off it."""
    return TradeOffCurve(partial(_profile_of, tuple(events)))


def mu_of(events: Events, delta: float) -> float:
    """The mu of Gaussian DP: `TradeOffCurve.mu`, and exactly that of the Gaussians where there is nothing else.

    Poisson-sampled Gaussians are mu-GDP without a `delta` only for a mu close to that of no sampling, because of tests
    with error rates of 1e-100 and less. `delta` leaves these out.
    """
    delta = check_delta(delta)
    exact = gaussian_mu(events)
    return trade_off_curve(events).mu(delta) if exact is None else exact


def _profile_of(events: Events) -> Profile:
    epsilons, deltas = privacy_profile(events)
    return list(zip(epsilons.tolist(), deltas.tolist(), strict=True))


def _grouped(curve: TradeOffCurve, size: int) -> Profile:
    """By doubling: `size` changes are two halves, and one more where it is odd."""
    if size == 1:
        return curve._given
    half = TradeOffCurve(_grouped(curve, size // 2))
    both = _after(half, half)
    return _after(both, curve)._given if size % 2 else both._given


def _joined(curve: TradeOffCurve, more: list[Pair]) -> Profile:
    return [*curve._given, *more]


def _largest_deltas(curves: Sequence[TradeOffCurve]) -> Profile:
    epsilons = np.unique(np.concatenate([curve._tangents[0] for curve in curves]))
    deltas = np.max([curve._deltas_at(epsilons) for curve in curves], axis=0)
    return list(zip(epsilons.tolist(), deltas.tolist(), strict=True))


def _checked(profile: Profile) -> list[Pair]:
    """The pairs by ascending epsilon, without epsilons whose exponential is no float."""
    pairs = []
    for epsilon, delta in profile:
        if check_number("epsilon", epsilon) < 0:
            raise ValueError(f"epsilon must not be negative, got {epsilon}")
        pairs.append((float(epsilon), check_probability("delta", delta)))
    return sorted(pair for pair in pairs if pair[0] <= LARGEST_EPSILON) or [(0.0, 1.0)]


def _slope(one: Pair, two: Pair) -> float:
    return (two[1] - one[1]) / (two[0] - one[0])


def _deltas(false_positives: F64, false_negatives: F64, epsilons: F64) -> F64:
    """sup over the corners of 1 - f(x) - e^epsilon x, at each epsilon."""
    excess = 1 - false_negatives - np.outer(np.exp(epsilons), false_positives)
    return np.asarray(np.clip(excess.max(axis=1), 0.0, 1.0), dtype=np.float64)


def _after(first: TradeOffCurve, second: TradeOffCurve) -> TradeOffCurve:
    """The curve of neighbours `first` apart, then `second`: the lines that touch g(h(x))."""
    (x, f), (y, g) = first.corners, second.corners
    reached = 1 - f  # the power of `first`, rising in x
    inner = np.interp(y, reached, x)[(y > reached[0]) & (y < 1)]  # where `first` reaches a corner of `second`
    rates = np.union1d(x, inner)
    power = 1 - np.interp(np.interp(rates, x, reached), y, g)
    last = min(first.last_epsilon + second.last_epsilon, LARGEST_EPSILON)
    epsilons = np.linspace(0.0, last, _POINTS)
    deltas = np.minimum(_deltas(rates, 1 - power, epsilons) + _LAST_DIGITS, 1.0)
    deltas[-1] = min(deltas[-1], *_at_the_end(first, second, last))
    return TradeOffCurve(zip(epsilons, deltas, strict=True))


def _at_the_end(first: TradeOffCurve, second: TradeOffCurve, last: float) -> list[float]:
    """Bounds on the delta at `last`, the sum of both curves' last epsilons: delta + e^epsilon delta', in either order.

    They are exact where deltas are too small for a difference of probabilities: 0 of pure DP stays 0.
    """
    if last < first.last_epsilon + second.last_epsilon:
        return [1.0]
    ends = [(curve.last_epsilon, float(curve._tangents[1][-1])) for curve in (first, second)]
    return [delta + math.exp(epsilon) * other for (epsilon, delta), (_, other) in (ends, ends[::-1])]
