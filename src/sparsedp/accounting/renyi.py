"""Events known only through their Renyi divergences (zCDP, repeat-and-select, worst-of), as a dominating pair."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from dp_accounting.rdp import RdpAccountant

from sparsedp.accounting.events import DpEvent, Events, RepeatAndSelectDpEvent, WorstOfDpEvent, ZCDpEvent
from sparsedp.accounting.pld.pairs import LARGEST_LOSS, Atoms, NoPrivacy
from sparsedp.core.arrays import F64
from sparsedp.core.validation import MOST_RELEASES, check_finite, check_number

_ORDERS: F64 = 1 + np.logspace(-1.5, 5, 260)
_POINTS = 4000
_LARGEST_SHAPE = 1e6
_LEAST_LOG_DELTA = -700.0
_ROUNDING = 1e-13  # of a divergence of one event, in floating point


def has_renyi(event: DpEvent) -> bool:
    """Whether `event` can be accounted by its Renyi divergences, add-or-remove-one."""
    return bool(_Accountant(orders=_ORDERS[:1]).supports(event))


def check_renyi(event: DpEvent) -> None:
    """Refuse impossible parameters by name; `NoPrivacy` where nothing is protected."""
    if isinstance(event, ZCDpEvent):
        for name in ("rho", "xi"):
            value = check_number(name, getattr(event, name))
            if value < 0:
                raise ValueError(f"{name} must not be negative, got {value}")
            if value > LARGEST_LOSS:
                raise NoPrivacy
    elif isinstance(event, RepeatAndSelectDpEvent):
        mean, shape = check_finite("mean", event.mean), check_number("shape", event.shape)
        if not 1 <= mean <= MOST_RELEASES:
            raise ValueError(f"mean must lie between 1 and {MOST_RELEASES}, got {mean:g}")
        if not (0 <= shape <= _LARGEST_SHAPE or shape == math.inf):
            raise ValueError(
                f"shape must be infinite, or lie between 0 and {_LARGEST_SHAPE:g}, got {shape:g}"
            )
        check_renyi(event.event)
    elif isinstance(event, WorstOfDpEvent):
        for each in event.events:
            check_renyi(each)


class _Accountant(RdpAccountant):  # type: ignore[misc]
    """That of dp-accounting, which knows no `WorstOfDpEvent`."""

    _rdp: F64

    def _maybe_compose(self, event: DpEvent, count: int, do_compose: bool) -> Any:
        if not isinstance(event, WorstOfDpEvent):
            return super()._maybe_compose(event, count, do_compose)
        before = self._rdp
        largest = np.zeros_like(before)
        try:
            for each in event.events:
                self._rdp = np.zeros_like(before)
                refused = self._maybe_compose(each, 1, do_compose)
                if refused is not None:
                    return refused
                largest = np.maximum(largest, self._rdp)
        finally:
            self._rdp = before
        if do_compose:
            self._rdp = before + count * largest
        return None


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Orders at which a divergence is not computed are left out, which is valid; each would be a line of a log."""
    log = logging.getLogger("absl")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


def renyi_epsilon(events: Events, delta: float) -> float:
    """An upper bound on epsilon from Renyi divergences only: looser than a loss distribution, always quick."""
    orders = np.concatenate([np.arange(2, 64), 2.0 ** np.arange(6, 13)])
    try:
        divergences = _divergences(events, orders) + _ROUNDING * sum(count for _, count in events)
    except NoPrivacy:
        return math.inf
    epsilons = divergences + np.log1p(-1 / orders) - (math.log(delta) + np.log(orders)) / (orders - 1)
    return max(float(np.min(epsilons, initial=math.inf, where=np.isfinite(epsilons))), 0.0)


def _divergences(events: Events, orders: F64) -> F64:
    accountant = _Accountant(orders=orders)
    try:
        with np.errstate(all="ignore"), _without_warnings():
            for event, count in events:
                accountant.compose(event, count)
    except (OverflowError, ZeroDivisionError) as error:
        raise NoPrivacy from error
    # Cancellation can leave them below zero, or undefined at orders where they are too large.
    return np.maximum(np.asarray(accountant.rdp, dtype=np.float64), 0.0)


def renyi_pair(events: Events) -> Atoms:
    """One pair for all these events together: their divergences add before they are turned into a curve.

    Guarantee: dominates the composition in both directions. Proof: at e >= 0 its delta is at most g(e) =
    min over orders a of exp((a - 1)(R(a) - e + ln(1 - 1/a))) / a (Canonne, Kamath and Steinke 2020,
    proposition 12), for either order of the neighbours, and so 1 - e^-e (1 - g(e)) at -e. The true curve,
    convex in e^e, lies below the lower hull of these; the hull is the curve of the pair returned.
    """
    divergences = _divergences(events, _ORDERS)
    finite = divergences < LARGEST_LOSS  # neither infinite nor undefined
    if not finite.any():
        raise NoPrivacy
    return _pair_below(_ORDERS[finite], divergences[finite])


def _log_delta(losses: F64, orders: F64, divergences: F64) -> F64:
    exponents = (orders - 1) * (divergences - losses[:, None] + np.log1p(-1 / orders)) - np.log(orders)
    return np.asarray(np.minimum(exponents.min(axis=1), 0.0), dtype=np.float64)


def _pair_below(orders: F64, divergences: F64) -> Atoms:
    highest = 1e-12
    while highest < 1e12 and _log_delta(np.array([highest]), orders, divergences)[0] > _LEAST_LOG_DELTA:
        highest *= 2
    losses = np.linspace(0, highest, _POINTS)
    delta = np.exp(_log_delta(losses, orders, divergences))
    losses = np.concatenate([-losses[:0:-1], losses])
    delta = np.concatenate([1 - np.exp(losses[: _POINTS - 1]) * (1 - delta[:0:-1]), delta])
    while True:
        p = _masses(losses, delta)
        convex = p >= 0
        convex[[0, -1]] = True
        if convex.all():
            break
        losses, delta = (
            losses[convex],
            delta[convex],
        )  # a point above the chord of its neighbours is no corner
    up = losses > 0
    losses, p, infinity = losses[up], p[up], float(delta[-1])
    q = p * np.exp(-losses)
    middle = max(1 - infinity - float(p.sum() + q.sum()), 0.0)
    return Atoms(
        np.concatenate([-losses[::-1], [0.0], losses]),
        np.concatenate([q[::-1], [middle], p]),
        np.concatenate([p[::-1], [middle], q]),
        infinity,
        infinity,
        symmetric=True,
    )


def _masses(losses: F64, delta: F64) -> F64:
    """The P-masses at the corners of a curve piecewise linear in e^loss: e^loss times the change of slope."""
    fall, gap = -np.diff(delta), np.diff(losses)
    p = np.zeros(len(losses))
    p[1:] += fall / -np.expm1(-gap)
    p[:-1] -= fall / np.expm1(gap)
    return p
