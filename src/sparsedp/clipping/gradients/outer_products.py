"""Per-example gradients of a weight matrix, as outer products of inputs and output gradients."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor
from typing_extensions import override

from sparsedp.clipping.gradients.base import (
    CANCELLATION_TOL,
    CHUNK,
    NEGLIGIBLE,
    SUMMED_AT_ONCE,
    SUMS_AT_ONCE,
    Summand,
)
from sparsedp.clipping.gradients.materialised import Materialised
from sparsedp.clipping.gradients.vectors import WIDEST, Vectors, row_squares, upcast
from sparsedp.rows.units import Units

MOST_POSITIONS = 1 << 12
"""How many positions of sequences are summed at once, if that is fewer examples than ``SUMMED_AT_ONCE``."""

_LARGEST_BMM = 1 << 16
"""Products with more numbers are summed one after the other: all of them at once would not stay in the cache."""

_VANISHING = 2.0**-55
"""The squares of float32 vectors with a smaller norm lose digits, or underflow."""


class OuterProducts(Summand):
    """``G_i = g_i a_i^T``, or ``sum_t g_it a_it^T`` for sequences: layer inputs a, output gradients g.

    Norms without materialising G_i: for vectors ``||a_i||^2 ||g_i||^2``. For sequences the cheaper of
    ``sum_{t,s} <a_t, a_s> <g_t, g_s>`` (Gram form, T^2 (I + O) multiplications per example) and materialising
    G_i (T I O of them). The clipped sum ``sum_i w_i G_i`` is one matrix product either way.
    """

    def __init__(self, inputs: Tensor | Vectors, output_grads: Tensor | Vectors) -> None:
        self.inputs = inputs if isinstance(inputs, Vectors) else Vectors(inputs)
        self.output_grads = output_grads if isinstance(output_grads, Vectors) else Vectors(output_grads)
        self.batch_size = self.inputs.values.shape[0]
        self._materialised: Tensor | None = None

    @override
    def squared_norms(self) -> Tensor:
        a, g = self.inputs.values, self.output_grads.values
        if a.dim() == 2:
            return self.inputs.squares * self.output_grads.squares
        length, width, height = a.shape[1], a.shape[2], g.shape[2]
        if length * (width + height) < width * height:
            step = max(1, CHUNK // max(1, 2 * length * length))
            pieces = [
                _gram_squares(upcast(a[start : start + step]), upcast(g[start : start + step]))
                for start in range(0, max(1, self.batch_size), step)
            ]
            self.negligible = torch.cat([negligible for _, negligible in pieces])
            return torch.cat([squares for squares, _ in pieces])
        if self._materialised is None:
            # No larger than the inputs, so it is cached for the sum: the norm is taken of exactly what is summed.
            self._materialised = _materialise(upcast(a), upcast(g))
        return Materialised(self._materialised).squared_norms()

    @override
    def sizes(self) -> Tensor:
        sizes = (self.inputs.squares * self.output_grads.squares).sqrt()
        return sizes if sizes.dim() == 1 else sizes.sum(1)

    @override
    def select(self, examples: Tensor) -> OuterProducts:
        chosen = OuterProducts(self.inputs.values[examples], self.output_grads.values[examples])
        chosen._materialised = None if self._materialised is None else self._materialised[examples]
        return chosen

    @override
    def grouped(self, units: Units) -> OuterProducts:
        return OuterProducts(_joined(self.inputs.values, units), _joined(self.output_grads.values, units))

    @override
    def instantiate(self) -> Tensor:
        if self._materialised is not None:
            return self._materialised
        return _materialise(upcast(self.inputs.values), upcast(self.output_grads.values))

    def merge(self, others: Sequence[OuterProducts]) -> OuterProducts:
        """Several uses of one matrix are one longer sequence."""
        uses = (self, *others)
        return OuterProducts(
            torch.cat([_sequence(use.inputs.values) for use in uses], 1),
            torch.cat([_sequence(use.output_grads.values) for use in uses], 1),
        )

    @override
    def dot(self, other: Summand) -> Tensor:
        a, g = self.sequences()
        if isinstance(other, Materialised):
            gradients = upcast(other.values).reshape(self.batch_size, g.shape[2], a.shape[2])
            return (torch.bmm(g, gradients) * a).flatten(1).sum(1)
        return other.dot(self)

    def sequences(self) -> tuple[Tensor, Tensor]:
        """Inputs (B, T, I) and output gradients (B, T, O)."""
        return _sequence(upcast(self.inputs.values)), _sequence(upcast(self.output_grads.values))

    def _add_to(self, out: Tensor, weights: Tensor) -> None:
        if self._materialised is not None:
            Materialised(self._materialised)._add_to(out, weights)
            return
        a, g = upcast(self.inputs.values), upcast(self.output_grads.values)
        length = a.shape[1:-1].numel()
        if a.dim() == 2 and 1 in (a.shape[1], g.shape[1]):
            vectors, factors = (a, g) if g.shape[1] == 1 else (g, a)
            Materialised(vectors)._add_to(out, weights.double() * factors.squeeze(1))
            return
        # Positions of one example may cancel: float32 sums of them would round the other examples too.
        dtype = torch.float64 if length > 1 else torch.promote_types(a.dtype, weights.dtype)
        weights = weights.to(dtype).repeat_interleave(length).unsqueeze(1)
        a, g = a.reshape(-1, a.shape[-1]), g.reshape(-1, g.shape[-1])
        rows = max(1, min(SUMMED_AT_ONCE, MOST_POSITIONS // max(length, 1))) * max(length, 1)
        _add_products(out.view(g.shape[1], a.shape[1]), g, a, weights, rows)


def _add_products(out: Tensor, g: Tensor, a: Tensor, weights: Tensor, rows: int) -> None:
    """Add ``sum_t weights[t] g_t a_t^T`` to ``out``, in float64 from sums of ``SUMS_AT_ONCE`` sums over ``rows`` terms."""
    for start in range(0, a.shape[0], rows * SUMS_AT_ONCE):
        some = slice(start, start + rows * SUMS_AT_ONCE)
        out.add_(_sum_of_sums(g[some], a[some], weights[some], rows))


def _sum_of_sums(g: Tensor, a: Tensor, weights: Tensor, rows: int) -> Tensor:
    """``sum_t weights[t] g_t a_t^T`` in the precision of the weights, from sums over ``rows`` terms."""
    left, right = g.to(weights.dtype), a.to(weights.dtype)
    if left.shape[1] * right.shape[1] <= _LARGEST_BMM:
        return _sum_of_small_sums(left, right, weights, rows)
    narrower = right if a.shape[1] <= g.shape[1] else left
    scaled = narrower.new_empty(min(rows, a.shape[0]), narrower.shape[1])  # stays in the cache
    total = left.new_empty(left.shape[1], right.shape[1])
    for start in range(0, a.shape[0], rows):
        some = slice(start, start + rows)
        weighted = torch.mul(narrower[some], weights[some], out=scaled[: a.shape[0] - start])
        factors = (left[some].T, weighted) if narrower is right else (weighted.T, right[some])
        if not start:
            torch.mm(*factors, out=total)
        elif weighted.shape[0] == rows and _adds_one_sum(
            *factors
        ):  # the size of the rest changes with the batch
            total.addmm_(*factors)
        else:
            total += torch.mm(*factors)
    return total


def _sum_of_small_sums(left: Tensor, right: Tensor, weights: Tensor, rows: int) -> Tensor:
    """The same in one call for all sums but the last, which may have fewer terms."""
    if right.shape[1] <= left.shape[1]:
        right = right * weights
    else:
        left = left * weights
    sums, rest = divmod(left.shape[0], rows)
    whole = [each[: sums * rows].reshape(sums, rows, each.shape[1]) for each in (left, right)]
    total = torch.bmm(whole[0].mT, whole[1]).sum(0)
    return total if not rest else total + torch.mm(left[-rest:].T, right[-rest:])


def _adds_one_sum(left: Tensor, right: Tensor) -> bool:
    """``addmm_`` with these factors is known to add a finished sum, as ``float32_sums_move`` assumes."""
    (height, terms), width = left.shape, right.shape[1]
    if left.device.type != "cpu" or left.stride(0) != 1 or right.stride(1) != 1:
        return False
    strides = (left.stride(1), right.stride(0))
    return _addmm_adds_one_sum(height, terms, width, strides, left.dtype, torch.get_num_threads())


@lru_cache(maxsize=256)
def _addmm_adds_one_sum(
    height: int, terms: int, width: int, strides: tuple[int, int], dtype: torch.dtype, threads: int
) -> bool:
    """Whether the library's product of this shape adds up its terms before it adds them to the total.

    That saves a pass over the total for each sum. A library may also add term by term to the total, which rounds
    more often, and the result then differs from that of a product and an addition in some of so many numbers.
    """
    random = torch.Generator().manual_seed(height * width + terms)
    left = torch.randn(terms, strides[0], generator=random, dtype=dtype)[:, :height].T
    right = torch.randn(terms, strides[1], generator=random, dtype=dtype)[:, :width]
    total = terms * torch.randn(height, width, generator=random, dtype=dtype)
    return torch.equal(total + torch.mm(left, right), total.addmm(left, right))


def _sequence(values: Tensor) -> Tensor:
    return values if values.dim() == 3 else values.unsqueeze(1)


def _joined(values: Tensor, units: Units) -> Tensor:
    """The positions of all examples of a unit as one sequence.

    Its length is public, zeros fill it up: float sums over it are the same whoever else is in the batch.
    """
    sequences = _sequence(values)
    joined = sequences.new_zeros(units.count, units.most, *sequences.shape[1:])
    unit, slot = (torch.from_numpy(index).to(values.device) for index in (units.of_example, units.slots))
    joined[unit, slot] = sequences
    return joined.flatten(1, 2)


def _materialise(a: Tensor, g: Tensor) -> Tensor:
    return torch.bmm(_sequence(g).mT, _sequence(a))


def _materialised_squares(a: Tensor, g: Tensor) -> Tensor:
    return Materialised(_materialise(a, g)).squared_norms()


def _gram_squares(a: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """Squared norms, and which gradients count as zero."""
    aa, gg = _gram(a), _gram(g)
    a_squares, g_squares = aa.diagonal(dim1=1, dim2=2).double(), gg.diagonal(dim1=1, dim2=2).double()
    sizes = (a_squares * g_squares).sqrt().sum(1).square()
    squares = (aa * gg).flatten(1).sum(1).double()
    underflow = (_underflow(a_squares, g_squares) + _underflow(g_squares, a_squares)).square()
    uncertain = (
        (squares < CANCELLATION_TOL * sizes)
        | (CANCELLATION_TOL**2 * squares < underflow)
        | ~squares.isfinite()
    )
    negligible = torch.zeros_like(uncertain)
    recomputed = uncertain.nonzero().flatten()
    if recomputed.numel():
        nonzero = ((a[recomputed] != 0).any(2) & (g[recomputed] != 0).any(2)).any(1)
        step = max(1, CHUNK // (a.shape[2] * g.shape[2]))
        for some in torch.split(recomputed[nonzero], step):
            squares[some] = _materialised_squares(a[some].double(), g[some].double())
            sizes = (row_squares(a[some]) * row_squares(g[some])).sqrt().sum(1).square()
            negligible[some] = squares[some] < NEGLIGIBLE * sizes
    return squares.masked_fill_(negligible, 0.0), negligible


def _gram(vectors: Tensor) -> Tensor:
    """Products of all pairs of an example's vectors; for wide ones in float64, from sums of ``WIDEST`` in float32."""
    if vectors.shape[2] <= WIDEST:
        return torch.bmm(vectors, vectors.mT)
    return sum(
        (torch.bmm(part, part.mT).double() for part in torch.split(vectors, WIDEST, 2)), torch.zeros(())
    )


def _underflow(squares: Tensor, others: Tensor) -> Tensor:
    """An upper bound on the norm of the products with vectors whose squares may have underflowed in float32."""
    return ((squares < _VANISHING**2) * (others.sqrt() + _VANISHING)).sum(1) * _VANISHING
