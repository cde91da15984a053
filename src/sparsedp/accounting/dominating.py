"""From events to dominating pairs: nests are flattened, counts honoured, and what can be merged is merged."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from dp_accounting import dp_event

from sparsedp.accounting import events as ev
from sparsedp.accounting.bounded_range import BoundedRange, laplace
from sparsedp.accounting.direction import Pairs
from sparsedp.accounting.joint import joint
from sparsedp.accounting.ledger_events import event_key
from sparsedp.accounting.pairs import Gaussian, Pair, bucket_response, discrete_laplace, randomized_response
from sparsedp.accounting.renyi import has_renyi, renyi_pair
from sparsedp.accounting.sampling import PoissonSampled
from sparsedp.accounting.shifted_gaussians import gaussian_mixture, truncated_poisson_gaussian
from sparsedp.accounting.sparse_vector import sparse_vector_pairs
from sparsedp.accounting.validation import check_count, check_number, check_positive, check_probability

_MAX_ATOMS = 100_000


class NoPrivacy(Exception):
    """Some event publishes the data: epsilon is infinite at every delta below 1."""


def leaves(event: dp_event.DpEvent, count: int = 1) -> Iterator[tuple[dp_event.DpEvent, int]]:
    """The events inside compositions, each with how often it happens in all."""
    if not isinstance(event, dp_event.DpEvent):
        raise ValueError(f"event must be a DpEvent, got {event!r}")
    if isinstance(event, ev.SelfComposedDpEvent):
        yield from leaves(event.event, count * check_count("count", event.count, minimum=0))
    elif isinstance(event, ev.ComposedDpEvent):
        for inner in event.events:
            yield from leaves(inner, count)
    elif count > 0 and not isinstance(event, ev.NoOpDpEvent):
        yield event, count


def merged(events: ev.Events) -> list[tuple[dp_event.DpEvent, int]]:
    """The leaves of all events, equal ones counted together, in an order that does not depend on theirs."""
    counts: dict[str, tuple[dp_event.DpEvent, int]] = {}
    for event, times in events:
        for leaf, count in leaves(event, check_count("count", times, minimum=0)):
            key = event_key(leaf)
            counts[key] = (leaf, count + (counts[key][1] if key in counts else 0))
    return [counts[key] for key in sorted(counts)]


def composition_key(events: ev.Events) -> str:
    """One text for one composition: the serialised forms of its leaves, in full precision, and their counts."""
    return "; ".join(f"{count} x {event_key(event)}" for event, count in merged(events))


@dataclass
class _Collector:
    """Pairs found so far; all Gaussians become one, and so do all events known by their Renyi divergences."""

    mu_squared: float = 0.0
    renyi: list[tuple[dp_event.DpEvent, int]] = field(default_factory=list)
    pairs: Pairs = field(default_factory=list)

    def gaussian(self, sigma: float, count: int) -> None:
        self.mu_squared += count / _noise("noise_multiplier", sigma) ** 2

    def bounded_range(self, event: ev.BoundedRangeGaussianDpEvent, count: int) -> None:
        if event.draws and event.epsilon:
            self.pairs.append((BoundedRange(event.epsilon), event.draws * count))
        if math.isfinite(event.noise_multiplier):
            self.gaussian(event.noise_multiplier, count)

    def add(self, pair: Pair, count: int) -> None:
        if isinstance(pair, Gaussian):  # what sampling at rate 1 leaves: it counts with the other Gaussians
            self.mu_squared += count * pair.mu**2
        else:
            self.pairs.append((pair, count))

    def result(self) -> Pairs:
        pairs = list(self.pairs)
        if self.mu_squared > 0:
            pairs.append((Gaussian(math.sqrt(self.mu_squared)), 1))
        if self.renyi:
            pairs.append((renyi_pair(self.renyi), 1))
        return pairs


def dominating_pairs(events: ev.Events) -> Pairs:
    """The pairs, with counts, whose product dominates all events together; raises `NoPrivacy` if none can.

    Guarantee: add-or-remove-one adjacency (P with the record, Q without).
    """
    collector = _Collector()
    for event, count in merged(events):
        _collect(event, count, collector)
    return collector.result()


def _collect(event: dp_event.DpEvent, count: int, found: _Collector) -> None:
    if isinstance(event, ev.NonPrivateDpEvent):
        raise NoPrivacy
    if isinstance(event, ev.GaussianDpEvent):
        found.gaussian(event.noise_multiplier, count)
    elif isinstance(event, ev.BoundedRangeGaussianDpEvent):
        found.bounded_range(event, count)
    elif isinstance(event, ev.SparseVectorDpEvent):
        found.pairs += [(pair, times * count) for pair, times in sparse_vector_pairs(event)]
    elif isinstance(event, ev.PoissonSampledDpEvent):
        for pair in _sampled(event):
            found.add(pair, count)
    elif isinstance(event, (ev.ZCDpEvent, ev.RepeatAndSelectDpEvent)) and has_renyi(event):
        found.renyi.append((event, count))
    else:
        found.pairs += [(pair, count) for pair in _additive_noise(event)]


def _sampled(event: ev.PoissonSampledDpEvent) -> list[Pair]:
    rate = check_probability("sampling_probability", event.sampling_probability)
    inside = dominating_pairs([(event.event, 1)]) if rate > 0 else []
    if not inside:
        return []
    pair = joint(inside)
    return [pair if rate == 1 else PoissonSampled(pair, rate)]


def _additive_noise(event: dp_event.DpEvent) -> list[Pair]:
    if isinstance(event, ev.PureDpEvent):
        return [randomized_response(event.epsilon)] if event.epsilon else []
    if isinstance(event, ev.LaplaceDpEvent):
        return [laplace(1 / _noise("noise_multiplier", event.noise_multiplier))]
    if isinstance(event, ev.DiscreteLaplaceDpEvent):
        sensitivity = check_count("sensitivity", event.sensitivity)
        if sensitivity > _MAX_ATOMS:
            raise ValueError(
                f"sensitivity must be at most {_MAX_ATOMS} for discrete Laplace noise, got {sensitivity}"
            )
        return [discrete_laplace(check_positive("noise_parameter", event.noise_parameter), sensitivity)]
    if isinstance(event, ev.RandomizedResponseDpEvent):
        return _randomized_response(event)
    if isinstance(event, ev.MixtureOfGaussiansDpEvent):
        std = _noise("standard_deviation", event.standard_deviation)
        mixture = gaussian_mixture(std, event.sensitivities, event.sampling_probs)
        return [mixture] if max(mixture.shifts) > 0 else []
    if isinstance(event, ev.TruncatedSubsampledGaussianDpEvent):
        return _truncated(event)
    raise ValueError(f"event has no loss distribution here: {type(event).__name__} in {event!r}")


def _noise(name: str, value: float) -> float:
    if check_number(name, value) < 0:
        raise ValueError(f"{name} must not be negative, got {value}")
    if value == 0:
        raise NoPrivacy
    return value


def _truncated(event: ev.TruncatedSubsampledGaussianDpEvent) -> list[Pair]:
    rate = check_probability("sampling_probability", event.sampling_probability)
    size = check_count("dataset_size", event.dataset_size, minimum=0)
    batch = check_count("truncated_batch_size", event.truncated_batch_size, minimum=0)
    if not (rate and size and batch):
        return []
    return [truncated_poisson_gaussian(size, rate, batch, _noise("noise_multiplier", event.noise_multiplier))]


def _randomized_response(event: ev.RandomizedResponseDpEvent) -> list[Pair]:
    buckets = check_count("num_buckets", event.num_buckets)
    noise = check_probability("noise_parameter", event.noise_parameter)
    if buckets == 1 or noise == 1:
        return []
    if noise == 0:
        raise NoPrivacy
    return [bucket_response(noise, buckets)]
