"""The per-example gradients of one parameter over one batch, stored as factors rather than materialised."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import combinations
from typing import Self

import torch
from torch import Tensor
from typing_extensions import override

from sparsedp.rows.units import Units

CANCELLATION_TOL = 2.0**-11
"""A squared norm whose terms cancel to below this share of their sizes is recomputed from the materialised gradient:
float32 sums are exact to about 2**-22 of the sizes, so the other norms are exact to 2**-11, the margin that clipping
leaves."""

NEGLIGIBLE = 2.0**-40
"""A squared norm below this share of the square of its terms' sizes is rounding of the layers' float32 values: such
a gradient counts as zero. So no example's terms have a norm above 2**20 C after clipping, and float64 sums of them
move neither that example's measured norm nor the sums of others by more than 2**-16 C."""

SUMMED_AT_ONCE = 128
"""How many examples a float32 sum may hold."""

SUMS_AT_ONCE = 16
"""How many such sums are added up in float32; the rest is float64."""


def float32_sums_move(examples: int) -> float:
    """The share of C by which rounding may move float32 sums of clipped gradients when an example is added or removed.

    Adding or removing an example shifts the others from one sum to the next, and so changes their rounding. A sum
    of gradients of norm at most C is off by at most u C times the sum of their depths in the tree of additions,
    u = 2^-24: every addition is off by u times its result (in l2 norm over coordinates too, by Minkowski). In any
    order of adding K numbers, the sum of their depths is at most K (K + 1) / 2; adding K' such sums deepens each
    number by (K' + 1) / 2 on average. Over n examples that is n (K + K' + 2) u C / 2, twice that for the
    difference of two batches.
    """
    return examples * (SUMMED_AT_ONCE + SUMS_AT_ONCE + 2) * 2.0**-24


CHUNK = 1 << 23
"""How many numbers a temporary may hold (32 MB of float32); larger work is split by examples."""


class PerExampleGradient(ABC):
    """Gradients G_0 ... G_{B-1} of one parameter, one for each example of a batch.

    Guarantee: G_i is a function of example i alone, if the layers of the model treat the examples of a batch
    separately; an example of weight 0 does not affect a sum, even if its gradient is NaN or infinite.
    """

    batch_size: int
    negligible: Tensor | None = None
    """(B,), bool: which gradients count as zero (see ``NEGLIGIBLE``), once their norms are known; None: none."""

    @abstractmethod
    def squared_norms(self) -> Tensor:
        """``||G_i||^2`` for each example: (B,), float64."""

    def accumulate(self, out: Tensor, weights: Tensor) -> None:
        """``out += sum_i weights[i] * G_i``, in place; ``weights`` is (B,), ``out`` is float64.

        At most ``SUMMED_AT_ONCE`` examples are summed in less than float64, and none if ``weights`` are float64
        or an example's gradient is a sum of terms, which may cancel. Call ``squared_norms`` first.
        """
        if self.negligible is not None:
            weights = weights.masked_fill(self.negligible, 0.0)
        if weights.cpu().numpy().all():  # numpy starts no threads for so few numbers
            self._add_to(out, weights)
        else:
            # 0 * NaN is NaN: examples of weight 0 must not enter the sum at all.
            nonzero = weights.nonzero().flatten()
            self.select(nonzero)._add_to(out, weights[nonzero])

    @abstractmethod
    def select(self, examples: Tensor) -> Self:
        """The gradients of these examples only, in this order."""

    @abstractmethod
    def grouped(self, units: Units) -> Self:
        """The sums over the examples of each unit: H_u = sum of G_i over the examples i of u.

        H_u is a function of the unit's own examples and of public numbers alone, as G_i is of example i.
        """

    @abstractmethod
    def instantiate(self) -> Tensor:
        """Every G_i, materialised: (B, *shape of the parameter)."""

    @abstractmethod
    def _add_to(self, out: Tensor, weights: Tensor) -> None:
        """``accumulate`` with weights that are not zero."""


class Summand(PerExampleGradient):
    """The contribution of one kind of use of a parameter."""

    def sizes(self) -> Tensor:
        """The sum of the norms of the terms that make up each ``G_i``: (B,), float64."""
        return self.squared_norms().sqrt()

    @abstractmethod
    def merge(self, others: Sequence[Self]) -> Self:
        """The per-example sum with gradients of the same kind."""

    @abstractmethod
    def dot(self, other: Summand) -> Tensor:
        """``<G_i, H_i>`` for each example: (B,); ``other`` is of another kind."""


class Sum(PerExampleGradient):
    """The sum of gradients of different kinds: a parameter that several layers share."""

    def __init__(self, parts: Sequence[Summand]) -> None:
        self.parts = list(parts)
        self.batch_size = self.parts[0].batch_size

    def squared_norms(self) -> Tensor:
        """The parts' squared norms and all cross terms."""
        squares = torch.stack([part.squared_norms() for part in self.parts]).sum(0)
        sizes = torch.stack([part.sizes() for part in self.parts]).sum(0).square()
        for left, right in combinations(self.parts, 2):
            squares += 2 * left.dot(right)
        uncertain = ~(squares >= CANCELLATION_TOL * sizes)
        for i in uncertain.nonzero().flatten():
            one = self.select(i.view(1))
            gradient = torch.zeros_like(one.parts[0].instantiate(), dtype=torch.float64)
            one._add_to(gradient[0], gradient.new_ones(1))  # the norm is taken of exactly what is summed
            squares[i] = gradient.square().sum()
        self.negligible = squares < NEGLIGIBLE * sizes
        return squares.masked_fill_(self.negligible, 0.0)

    @override
    def select(self, examples: Tensor) -> Sum:
        return Sum([part.select(examples) for part in self.parts])

    @override
    def grouped(self, units: Units) -> Sum:
        return Sum([part.grouped(units) for part in self.parts])

    @override
    def instantiate(self) -> Tensor:
        total = self.parts[0].instantiate()
        for part in self.parts[1:]:
            total = total + part.instantiate()
        return total

    def _add_to(self, out: Tensor, weights: Tensor) -> None:
        # The parts may cancel: float32 sums of them would round other examples too.
        for part in self.parts:
            part._add_to(out, weights.double())


def total(parts: Sequence[Summand]) -> PerExampleGradient:
    """The per-example sum over several uses of one parameter.

    Uses of one kind merge into one; different kinds become a ``Sum`` with its cross terms.
    """
    kinds: dict[type[Summand], list[Summand]] = {}
    for part in parts:
        kinds.setdefault(type(part), []).append(part)
    merged = [same[0].merge(same[1:]) if len(same) > 1 else same[0] for same in kinds.values()]
    return merged[0] if len(merged) == 1 else Sum(merged)
