"""From events to dominating pairs: nested events are flattened, equal ones counted, Gaussians merged."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from dp_accounting import dp_event

from sparsedp.accounting import events as ev
from sparsedp.accounting.event_json import event_key
from sparsedp.accounting.pld.bounded_range import BoundedRange, laplace
from sparsedp.accounting.pld.joint import joint
from sparsedp.accounting.pld.one_sided import Pairs
from sparsedp.accounting.pld.pairs import (
    LARGEST_LOSS,
    LARGEST_SHIFT,
    Atoms,
    Gaussian,
    NoPrivacy,
    Pair,
    Unresolved,
    Weighted,
    bucket_response,
    discrete_laplace,
    published_with,
    randomized_response,
)
from sparsedp.accounting.pld.sampling import PoissonSampled, sampled_loss
from sparsedp.accounting.pld.shifted_gaussians import gaussian_mixture, truncated_poisson_gaussian
from sparsedp.accounting.pld.sparse_vector import sparse_vector_pairs
from sparsedp.accounting.renyi import check_renyi, has_renyi, renyi_pair
from sparsedp.core.validation import (
    check_count,
    check_number,
    check_positive,
    check_probability,
    check_releases,
)

_MAX_ATOMS = 100_000


def leaves(event: dp_event.DpEvent, count: int = 1) -> Iterator[tuple[dp_event.DpEvent, int]]:
    """The events inside compositions, with their total counts."""
    if not isinstance(event, dp_event.DpEvent):
        raise ValueError(f"event must be a DpEvent, got {event!r}")
    if isinstance(event, ev.SelfComposedDpEvent):
        yield from leaves(event.event, count * check_releases("count", event.count))
    elif isinstance(event, ev.ComposedDpEvent):
        for inner in event.events:
            yield from leaves(inner, count)
    elif count > 0 and not isinstance(event, ev.NoOpDpEvent):
        yield event, count


def merged(events: ev.Events) -> list[tuple[dp_event.DpEvent, int]]:
    """The leaves of all events, equal ones counted together, in a canonical order."""
    counts: dict[str, tuple[dp_event.DpEvent, int]] = {}
    for event, times in events:
        for leaf, count in leaves(event, check_releases("count", times)):
            key = event_key(leaf)
            total = count + (counts[key][1] if key in counts else 0)
            counts[key] = (leaf, check_releases("count", total))
    return [counts[key] for key in sorted(counts)]


def composition_key(events: ev.Events) -> str:
    """One text for one composition: the serialised forms of its leaves, in full precision, and their counts."""
    return "; ".join(f"{count} x {event_key(event)}" for event, count in merged(events))


@dataclass
class _Collector:
    """Pairs collected so far; all Gaussians become one, and so do all events known by their Renyi divergences."""

    mu: float = 0.0
    renyi: list[tuple[dp_event.DpEvent, int]] = field(default_factory=list)
    pairs: Pairs = field(default_factory=list)

    def gaussian(self, mu: float, count: int) -> None:
        # hypot neither overflows nor underflows where squares would.
        self.mu = math.hypot(self.mu, math.sqrt(count) * mu)
        if self.mu > LARGEST_SHIFT:
            raise NoPrivacy

    def add(self, pair: Pair, count: int) -> None:
        count = check_releases("count", count)  # draws and positives may be whole floats
        if isinstance(pair, Gaussian):  # what sampling at rate 1 leaves: it counts with the other Gaussians
            self.gaussian(pair.mu, count)
        elif not isinstance(pair, PoissonSampled) and (largest_loss(pair) or 0.0) > LARGEST_LOSS:
            raise NoPrivacy
        else:
            self.pairs.append((pair, count))

    def result(self) -> Pairs:
        pairs = list(self.pairs)
        if self.mu > 0:
            pairs.append((Gaussian(self.mu), 1))
        if self.renyi:
            pairs.append((renyi_pair(self.renyi), 1))
        return pairs


def largest_loss(pair: Pair) -> float | None:
    """The pure epsilon of a pair, in both directions; None for one whose losses have no limit."""
    if isinstance(pair, BoundedRange):
        return pair.epsilon
    if isinstance(pair, Weighted):
        first, second = largest_loss(pair.first), largest_loss(pair.second)
        return None if first is None or second is None else max(first, second)
    if isinstance(pair, Atoms) and pair.symmetric and pair.infinity == 0:
        return float(pair.losses[-1])
    if isinstance(pair, PoissonSampled) and (inner := largest_loss(pair.pair)) is not None:
        # Reversed it is -ln(1 - rate + rate e^-loss), which is less: a harmonic mean is below the arithmetic one.
        return float(sampled_loss(np.array(inner), pair.rate))
    return None


def dominating_pairs(events: ev.Events) -> Pairs:
    """The pairs, with counts, whose product dominates all events together; raises `NoPrivacy` if none can.

    Guarantee: add-or-remove-one adjacency (P with the record, Q without).
    """
    collector = _Collector()
    for event, count in merged(events):
        _collect(event, count, collector)
    return collector.result()


def _collect(event: dp_event.DpEvent, count: int, collector: _Collector) -> None:
    if isinstance(event, ev.NonPrivateDpEvent):
        raise NoPrivacy
    if isinstance(event, ev.GaussianDpEvent):
        collector.gaussian(1 / _noise("noise_multiplier", event.noise_multiplier), count)
    elif isinstance(event, ev.BoundedRangeGaussianDpEvent):
        if event.draws and event.epsilon:
            collector.add(BoundedRange(event.epsilon), event.draws * count)
        collector.gaussian(1 / event.noise_multiplier, count)
    elif isinstance(event, ev.SparseVectorDpEvent):
        for pair, times in sparse_vector_pairs(event):
            collector.add(pair, times * count)
    elif isinstance(event, ev.PoissonSampledDpEvent):
        _collect_sampled(event, count, collector)
    elif isinstance(event, (ev.ZCDpEvent, ev.RepeatAndSelectDpEvent, ev.WorstOfDpEvent)) and has_renyi(event):
        check_renyi(event)
        if event != ev.ZCDpEvent(0.0):
            collector.renyi.append((event, count))
    else:
        for pair in _additive_noise(event):
            collector.add(pair, count)


def _collect_sampled(event: ev.PoissonSampledDpEvent, count: int, collector: _Collector) -> None:
    rate = check_probability("sampling_probability", event.sampling_probability)
    if rate == 0:
        return
    try:
        inside = dominating_pairs([(event.event, 1)])
        pair = joint(inside) if inside else None
    except (NoPrivacy, Unresolved):
        if rate == 1:
            raise
        collector.add(published_with(rate), count)
        return
    if pair is not None:
        collector.add(pair if rate == 1 else PoissonSampled(pair, rate), count)


def _additive_noise(event: dp_event.DpEvent) -> list[Pair]:
    if isinstance(event, ev.PureDpEvent):
        return [randomized_response(event.epsilon)] if event.epsilon else []
    if isinstance(event, ev.LaplaceDpEvent):
        scale = _noise("noise_multiplier", event.noise_multiplier)
        return [laplace(1 / scale)] if 1 / scale > 0 else []
    if isinstance(event, ev.DiscreteLaplaceDpEvent):
        sensitivity = check_count("sensitivity", event.sensitivity)
        if sensitivity > _MAX_ATOMS:
            raise ValueError(
                f"sensitivity must be at most {_MAX_ATOMS} for discrete Laplace noise, got {sensitivity}"
            )
        parameter = check_positive("noise_parameter", event.noise_parameter)
        if parameter * sensitivity > LARGEST_LOSS:
            raise NoPrivacy
        return [discrete_laplace(parameter, sensitivity)]
    if isinstance(event, ev.RandomizedResponseDpEvent):
        return _randomized_response(event)
    if isinstance(event, ev.MixtureOfGaussiansDpEvent):
        return _mixture(event)
    if isinstance(event, ev.TruncatedSubsampledGaussianDpEvent):
        return _truncated(event)
    raise ValueError(f"event has no loss distribution here: {type(event).__name__} in {event!r}")


def _noise(name: str, value: float) -> float:
    if check_number(name, value) < 0:
        raise ValueError(f"{name} must not be negative, got {value}")
    if value == 0:
        raise NoPrivacy
    return value


def _mixture(event: ev.MixtureOfGaussiansDpEvent) -> list[Pair]:
    std = _noise("standard_deviation", event.standard_deviation)
    mixture = gaussian_mixture(std, event.sensitivities, event.sampling_probs)
    if not mixture.shifts:
        raise NoPrivacy
    if max(mixture.shifts) > 0:
        return [mixture]
    return [published_with(mixture.infinity)] if mixture.infinity else []


def _truncated(event: ev.TruncatedSubsampledGaussianDpEvent) -> list[Pair]:
    rate = check_probability("sampling_probability", event.sampling_probability)
    size = check_count("dataset_size", event.dataset_size, minimum=0)
    batch = check_count("truncated_batch_size", event.truncated_batch_size, minimum=0)
    sigma = _noise("noise_multiplier", event.noise_multiplier)
    if not (rate and size and batch and 1 / sigma):
        return []
    if 2 / sigma > LARGEST_SHIFT:
        raise NoPrivacy
    return [truncated_poisson_gaussian(size, rate, batch, sigma)]


def _randomized_response(event: ev.RandomizedResponseDpEvent) -> list[Pair]:
    buckets = check_count("num_buckets", event.num_buckets)
    noise = check_probability("noise_parameter", event.noise_parameter)
    if buckets == 1 or noise == 1:
        return []
    if noise == 0:
        raise NoPrivacy
    return [bucket_response(noise, buckets)]
