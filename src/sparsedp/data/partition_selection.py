"""Which of the values that occur may be listed: DP partition selection by a Gaussian and a threshold."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from sparsedp.accounting import DpEvent, PrivacyStatement
from sparsedp.core.arrays import I64
from sparsedp.core.counts import SparseCounts
from sparsedp.data.rules import KEY_BITS
from sparsedp.mechanisms import (
    gaussian_std,
    threshold_for_false_positives,
    thresholded_counts,
    thresholded_counts_event,
)
from sparsedp.randomness import NoiseSource


@dataclass(frozen=True)
class PartitionSelection:
    """A vocabulary over `features` columns whose values are listed where their noisy count is large.

    Values are known by 40-bit keys, so that there are `features * 2**40` possible ones, for any data: a
    public domain. Every key of it gets noise, also those that no row has (`false_positives` of which are
    listed on average), so no delta has to be set aside for values that only one example has.

    Guarantee: add-or-remove-one example. An example has at most one value a feature, so it moves the counts
    by at most sqrt(features) in l2. Event: `Gaussian(sigma)`, which is (epsilon, delta) by the analytic
    Gaussian mechanism. Released: the listed keys. Proof: the list is post-processing of the Gaussian
    mechanism on the counts of the whole domain (`thresholded_counts`); hashing values to keys merges some of
    them and only lowers the sensitivity.
    """

    epsilon: float
    delta: float
    features: int
    false_positives: float = 100.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.epsilon) and self.epsilon > 0):
            raise ValueError(f"vocabulary epsilon must be positive and finite, got {self.epsilon}")
        if not 0 < self.delta < 1:
            raise ValueError(f"vocabulary delta must lie in (0, 1), got {self.delta}")
        if self.features < 1:
            raise ValueError(f"features must be at least 1, got {self.features}")
        if not 0 < self.false_positives <= 2**20:
            raise ValueError(f"false_positives must lie in (0, 2^20], got {self.false_positives}")

    @property
    def size(self) -> int:
        """How many keys there are."""
        return self.features << KEY_BITS

    @cached_property
    def std(self) -> float:
        """The standard deviation of the noise on a count."""
        return gaussian_std(sensitivity=math.sqrt(self.features), epsilon=self.epsilon, delta=self.delta)

    @property
    def threshold(self) -> float:
        """The noisy count from which on a value is listed."""
        return threshold_for_false_positives(self.false_positives, self.size, self.std)

    @property
    def event(self) -> DpEvent:
        """What listing costs."""
        return thresholded_counts_event(std=self.std, sensitivity=math.sqrt(self.features))

    def select(self, counts: SparseCounts, noise: NoiseSource) -> I64:
        """Return the ids that are listed, of a part of all ids."""
        return thresholded_counts(
            counts.ids,
            counts.values,
            counts.size,
            std=self.std,
            threshold=self.threshold,
            stream=noise.selection,
        )

    def statement(self, noise: NoiseSource) -> PrivacyStatement:
        """Say what the list cost."""
        return PrivacyStatement(
            epsilon=self.epsilon,
            delta=self.delta,
            adjacency="add-or-remove-one",
            unit="example",
            released=f"vocabularies of {self.features} features (noisy counts from {self.threshold:.0f})",
            private=noise.is_private,
        )


@dataclass(frozen=True)
class PublicValues:
    """Every value that occurs at least `minimum` times, on the caller's word that it is public: not DP."""

    minimum: int
    features: int

    def __post_init__(self) -> None:
        if self.minimum < 1:
            raise ValueError(f"minimum must be at least 1, got {self.minimum}")

    def select(self, counts: SparseCounts) -> I64:
        """Return the ids that are listed, of a part of all ids."""
        return counts.ids[counts.values >= self.minimum]
