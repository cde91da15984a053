"""A model of clicks with the shape of Criteo: counts, Zipf categories, labels that need embeddings.

Every number of a row is a function of the seed and the row's position (a counter-based generator: hashes, no
state), so any block can be made alone and twice the same, and any number of rows streamed.

The label follows a logistic model with three parts:

- main effects of the categories and the counts, which a linear model over one-hot ids can learn;
- for some pairs of features, the dot product of latent vectors of their two values: about zero on average
  over either one, so that a linear model sees little of it, while a network over embeddings can learn it;
- drift from day to day: values replace each other in popularity, and latent vectors turn.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, ndtri

from sparsedp.core.arrays import F64, I64, U64
from sparsedp.core.criteo import VOCABULARY_SIZES
from sparsedp.data.criteo import INTEGERS
from sparsedp.data.hashing import GAMMA, check_rows, mix

PAIRS = 4
LATENT = 2
REACH = 20.0
"""The rank at which a value matters 1/sqrt(2) of what the most popular one does."""


@dataclass(frozen=True)
class Logged:
    """Rows as they would be logged: counts where `present`, ids (0: missing), and the day."""

    label: NDArray[np.float32]
    counts: I64
    present: NDArray[np.bool_]
    ids: NDArray[np.int32]
    day: I64


@dataclass(frozen=True)
class ClickProcess:
    """A source of clicks; its fields decide every row.

    `vocabulary_sizes` are table heights, row 0 of each standing for a missing value. `zipf` is the exponent
    of popularity, `turnover` the share of ranks whose value is replaced a day, `rotation` the angle in
    radians by which latent vectors turn a day, `main` and `interaction` the strength of the two parts of the
    logit.
    """

    vocabulary_sizes: tuple[int, ...] = VOCABULARY_SIZES
    seed: int = 0
    zipf: float = 1.2
    turnover: float = 0.05
    rotation: float = 0.05
    main: float = 0.8
    interaction: float = 2.2
    bias: float = -1.5

    def __post_init__(self) -> None:
        if len(self.vocabulary_sizes) < 2:
            raise ValueError("vocabulary_sizes must have at least two entries, for there are interactions")
        for rows in self.vocabulary_sizes:
            check_rows(rows, "vocabulary_sizes")
        if not self.zipf > 0 or self.zipf == 1:
            raise ValueError(f"zipf must be positive and not exactly 1, got {self.zipf}")
        for name in ("turnover", "rotation", "main", "interaction"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be finite and not negative, got {getattr(self, name)}")

    def log(self, start: int, stop: int, *, rows_per_day: int) -> Logged:
        """Make the rows from `start` to before `stop`."""
        row = np.arange(start, stop, dtype=np.uint64)
        day = (row // np.uint64(rows_per_day)).astype(np.int64)
        draw = _Draws(mix(row * GAMMA), self.seed)
        counts, present, by_counts = self._counts(draw)
        ids = np.stack(
            [self._ids(draw, day, feature) for feature in range(len(self.vocabulary_sizes))], axis=1
        )
        weights = [self._weight(feature, column) for feature, column in enumerate(ids.T)]
        logit = (
            self.bias + by_counts + self._main_effects(ids, weights) + self._interactions(ids, day, weights)
        )
        label = (draw.uniform("label", 0) < expit(logit)).astype(np.float32)
        return Logged(label, counts, present, ids.astype(np.int32), day)

    def _counts(self, draw: _Draws) -> tuple[I64, NDArray[np.bool_], F64]:
        """Return skewed counts from -2 on, which of them are present, and their effect on the logit."""
        counts, present, effect = [], [], np.zeros(len(draw))
        for number in range(len(INTEGERS)):
            normal = ndtri(draw.uniform("count", number))
            counts.append(np.floor(np.exp(1.0 + (1.0 + 0.1 * number) * normal)).astype(np.int64) - number % 3)
            present.append(draw.uniform("present", number) >= 0.04 * (number % 6))
            effect += np.where(present[-1], normal, 0.0) * (0.1 if number % 2 else -0.1)
        return np.stack(counts, axis=1), np.stack(present, axis=1), effect * self.main

    def _ids(self, draw: _Draws, day: I64, feature: int) -> I64:
        """Return ids of Zipf popularity; the value at a rank is replaced about every 1 / turnover days."""
        values = self.vocabulary_sizes[feature] - 1
        power = 1.0 - self.zipf
        spread = (values + 1.0) ** power - 1.0
        drawn = (1.0 + draw.uniform("id", feature) * spread) ** (1.0 / power)
        rank = np.minimum(drawn.astype(np.int64) - 1, values - 1)
        phase = (self._hash("phase", feature, rank) >> np.uint64(11)) * 2.0**-53
        replaced = np.floor(day * self.turnover + phase).astype(np.int64)
        step, shift = self._strides[feature]
        ids = 1 + (rank * step + replaced * shift) % values
        return np.where(draw.uniform("missing", feature) < 0.03 * (feature % 5), 0, ids)

    @cached_property
    def _strides(self) -> list[tuple[int, int]]:
        """For every feature a step that visits each value once, so that popular values are no neighbours."""
        strides = []
        for feature, rows in enumerate(self.vocabulary_sizes):
            step = max(1, round((rows - 1) * 0.618))
            while math.gcd(step, rows - 1) > 1:
                step += 1
            strides.append(
                (step, 1 + int(self._hash("shift", feature, np.zeros(1, np.int64))[0]) % (rows - 1))
            )
        return strides

    def _weight(self, feature: int, ids: I64) -> F64:
        """Return how much a value matters: the popular ones most, a missing one not at all."""
        values, step = self.vocabulary_sizes[feature] - 1, self._strides[feature][0]
        rank = (ids - 1) * pow(step, -1, values) % values if values > 1 else 0.0
        return np.where(ids == 0, 0.0, 1.0 / np.sqrt(1.0 + rank / REACH))

    def _main_effects(self, ids: I64, weights: list[F64]) -> F64:
        total = np.zeros(len(ids))
        for feature, weight in enumerate(weights):
            total += weight * _signed(self._hash("main", feature, ids[:, feature]), 0)
        return total * self.main / math.sqrt(len(weights))

    def _interactions(self, ids: I64, day: I64, weights: list[F64]) -> F64:
        """Add the dot products of the latent vectors of feature j and feature j + half, for a few j."""
        half = len(weights) // 2
        pairs = [(feature, feature + half) for feature in range(min(PAIRS, half))]
        total = np.zeros(len(ids))
        for left, right in pairs:
            here, there = self._latent(left, ids, day), self._latent(right, ids, day)
            total += weights[left] * weights[right] * sum(a * b for a, b in zip(here, there, strict=True))
        return total * self.interaction / math.sqrt(len(pairs) * LATENT)

    def _latent(self, feature: int, ids: I64, day: I64) -> list[F64]:
        """Return the coordinates of the latent vectors, turned by the day's angle."""
        hashes = self._hash("latent", feature, ids[:, feature])
        cos, sin = np.cos(self.rotation * day), np.sin(self.rotation * day)
        return [cos * _signed(hashes, part) + sin * _signed(hashes, part + LATENT) for part in range(LATENT)]

    def _hash(self, what: str, feature: int, value: I64) -> U64:
        return mix(mix(value.astype(np.uint64) * GAMMA) ^ _key(self.seed, what, feature))


@dataclass(frozen=True)
class _Draws:
    """Independent uniform numbers for rows: functions of the row, the seed and a name."""

    rows: U64
    seed: int

    def __len__(self) -> int:
        return len(self.rows)

    def uniform(self, what: str, number: int) -> F64:
        """Return a number in (0, 1) for every row."""
        bits = (mix(self.rows ^ _key(self.seed, what, number)) >> np.uint64(12)).astype(np.float64)
        return (bits + 0.5) * 2.0**-52


def _key(seed: int, what: str, number: int) -> U64:
    name = int.from_bytes(what.encode().ljust(8, b"\0"), "little")
    folded = mix(np.array([seed % 2**64], np.uint64))
    for word in (name, number):
        folded = mix(folded ^ np.uint64(word))
    return folded


def _signed(hashes: U64, part: int) -> F64:
    """Return a number of mean 0 and variance 1 from the `part`-th 16 bits of every hash."""
    bits = (hashes >> np.uint64(16 * part) & np.uint64(0xFFFF)).astype(np.float64)
    return (bits - 32767.5) * (math.sqrt(3.0) / 32768.0)
