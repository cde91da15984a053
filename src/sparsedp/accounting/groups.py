"""What a guarantee for one example says of several at once, and of one that is replaced."""

from __future__ import annotations

import math

from sparsedp.accounting.calibration import delta_of, epsilon_of
from sparsedp.accounting.event_json import event_key
from sparsedp.accounting.events import DpEvent, Events, GaussianDpEvent
from sparsedp.accounting.pld.dominating import merged
from sparsedp.accounting.pld.profile import gaussian_mu
from sparsedp.accounting.trade_off import LARGEST_GROUP, TradeOffCurve, trade_off_curve
from sparsedp.accounting.users import events_of_users
from sparsedp.core.validation import check_count, check_delta, check_non_negative

_SAMPLED = (
    "PoissonSampledDpEvent",
    "SampledWithReplacementDpEvent",
    "SampledWithoutReplacementDpEvent",
    "MixtureOfGaussiansDpEvent",
    "TruncatedSubsampledGaussianDpEvent",
)
_LEAST_DELTA = 1e-290
_MOST_STEPS = 60


def is_sampled(event: DpEvent) -> bool:
    """Whether an event, or one inside it, reads a random part of the data: its cost is known for add-or-remove-one only."""
    key = event_key(event)
    return any(f'"type":"{name}"' in key for name in _SAMPLED)


def group_trade_off_curve(events: Events, size: int) -> TradeOffCurve:
    """The curve for neighbours of which one has up to `size` examples more; nothing is computed yet.

    Gaussian releases, of all data or of Poisson batches, are priced for the group itself (`events_of_users`);
    otherwise `size` changes follow one another (`TradeOffCurve.group`).
    """
    of_group = _priced_for_group(events, _checked_size(size))
    return trade_off_curve(events).group(size) if of_group is None else trade_off_curve(of_group)


def group_epsilon_of(events: Events, size: int, delta: float) -> float:
    """Epsilon at `delta` for neighbours of which one has up to `size` examples more.

    Guarantee: the least of the bounds known. Gaussian releases, of all data or of Poisson batches, are priced for the
    group itself (`events_of_users`); anything by the trade-off curve, `size` changes one after the other
    (`TradeOffCurve.group`), or by adding up epsilons. Add-or-remove-one: `events` are for one example.
    """
    size, delta = _checked_size(size), check_delta(delta)
    of_group = _priced_for_group(events, size)
    known = [] if of_group is None else [epsilon_of(of_group, delta)]
    return _least_epsilon(events, size, delta, known)


def group_delta_of(events: Events, size: int, epsilon: float) -> float:
    """Delta at `epsilon` for neighbours of which one has up to `size` examples more; see `group_epsilon_of`."""
    size, epsilon = _checked_size(size), check_non_negative("epsilon", epsilon)
    of_group = _priced_for_group(events, size)
    known = [] if of_group is None else [delta_of(of_group, epsilon)]
    return min([trade_off_curve(events).group(size).delta_at(epsilon), *known])


def replace_one_epsilon_of(events: Events, delta: float) -> float:
    """Epsilon at `delta` for neighbours of which one has another example in the place of one of the other's.

    Guarantee: replace-one, for `events` that are for add-or-remove-one. Proof: to replace is to remove and then to
    add, two changes (`TradeOffCurve.group`). Two Gaussian changes are one of twice the size.
    """
    delta, alone = check_delta(delta), _gaussian(events, 2)
    return _least_epsilon(events, 2, delta, [] if alone is None else [epsilon_of(alone, delta)])


def replace_one_delta_of(events: Events, epsilon: float) -> float:
    """Delta at `epsilon` under replace-one; see `replace_one_epsilon_of`."""
    epsilon, alone = check_non_negative("epsilon", epsilon), _gaussian(events, 2)
    known = [] if alone is None else [delta_of(alone, epsilon)]
    return min([trade_off_curve(events).group(2).delta_at(epsilon), *known])


def _checked_size(size: int) -> int:
    return check_count("size", size, maximum=LARGEST_GROUP)


def _priced_for_group(events: Events, size: int) -> Events | None:
    """The events as a group sees them; None where that is not known for one of them."""
    if (alone := _gaussian(events, size)) is not None:
        return alone
    try:
        return events_of_users(merged(events), size)
    except ValueError:
        return None


def _gaussian(events: Events, changes: int) -> Events | None:
    """Events that are together one Gaussian, moved so many times; None for others."""
    mu = gaussian_mu(events)
    if mu is None:
        return None
    return [(GaussianDpEvent(1 / (changes * mu)), 1)] if mu > 0 else []


def _least_epsilon(events: Events, changes: int, delta: float, known: list[float]) -> float:
    least = min([trade_off_curve(events).group(changes).epsilon_at(delta), *known])
    return least if math.isfinite(least) else _added(events, changes, delta)


def _added(events: Events, changes: int, delta: float) -> float:
    """changes x epsilon, at the delta of one change for which delta (1 + e^epsilon + ... ) is within `delta`.

    Proof: P(S) <= e^epsilon Q(S) + delta, applied once a change. It reaches deltas far below those of a curve.
    """
    log_each = math.log(delta)
    for _ in range(_MOST_STEPS):
        if log_each < math.log(_LEAST_DELTA):
            return math.inf
        epsilon = epsilon_of(events, math.exp(log_each))
        log_sum = _log_geometric(epsilon, changes)
        if log_each + log_sum <= math.log(delta):
            return changes * epsilon
        log_each = math.log(delta) - 1.001 * log_sum - 0.1  # a smaller delta costs a little more epsilon
    return math.inf


def _log_geometric(epsilon: float, changes: int) -> float:
    """ln(1 + e^epsilon + ... + e^((changes - 1) epsilon))."""
    if changes * epsilon < 1e-9:
        return math.log(changes) + epsilon * changes
    if math.isinf(epsilon):
        return math.inf
    # (e^(n epsilon) - 1) / (e^epsilon - 1), with the largest term taken out
    return (changes - 1) * epsilon + math.log(math.expm1(-changes * epsilon) / math.expm1(-epsilon))
