"""Sums and squared norms of the gradients of lookups that are adjacent in an ``Order``.

``position`` is that of an ``Order``; ``GradRows`` are one table's gradients. The loops write to given arrays:
returning a new array takes compiled code longer than most of the work.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparsedp.core.arrays import F64, I64, Bools
from sparsedp.core.compiled import compiled, compiled_sums

Grads = NDArray[Any]
"""float32 or float64."""

GradRows = tuple[int, Grads, int, int, I64, Grads]
"""The gradients of a table's lookups: base, grads, stride, dim, sources, scales.

``base`` is the index of the table's first lookup. Row number i begins at ``i * stride`` of ``grads`` and has ``dim``
numbers, so that a table's part of a wider gradient need not be copied. ``sources`` and ``scales`` are those of
``EmbeddingLookups``, empty instead of None.
"""


@compiled
def _grad_row(lookup: int, grad_rows: GradRows) -> Grads:
    _, grads, stride, dim, sources, _ = grad_rows
    start = (sources[lookup] if sources.size else lookup) * stride
    return grads[start : start + dim]


@compiled
def _sum_pair(total: F64, first: int, end: int, position: I64, grad_rows: GradRows) -> None:
    """The gradient of one example in one row: the sum over the lookups from ``first`` to ``end``."""
    base, scales = grad_rows[0], grad_rows[5]
    total[:] = 0.0
    for n in range(first, end):
        lookup = position[n] - base
        grad_row = _grad_row(lookup, grad_rows)
        scale = np.float64(scales[lookup]) if scales.size else 1.0
        for c in range(grad_row.size):
            total[c] += scale * grad_row[c]


@compiled_sums
def pair_squares(out: F64, pair_starts: I64, position: I64, grad_rows: GradRows) -> None:
    """The squared norm of each pair's gradient, the sum over its lookups."""
    base, grads, stride, dim, sources, scales = grad_rows
    # Nearly every pair is one lookup: rows are squared in memory order, not in sorted order.
    squares = np.empty((grads.size - dim) // max(stride, 1) + 1, np.float64)
    for n in range(squares.size):
        grad_row, square = grads[n * stride : n * stride + dim], 0.0
        for c in range(grad_row.size):
            square += np.float64(grad_row[c]) * np.float64(grad_row[c])
        squares[n] = square
    total = np.empty(dim, np.float64)
    for pair in range(out.size):
        first, end = pair_starts[pair], pair_starts[pair + 1]
        if end == first + 1:
            lookup = position[first] - base
            square = squares[sources[lookup] if sources.size else lookup]
            if scales.size:
                square *= np.float64(scales[lookup]) * np.float64(scales[lookup])
        else:
            _sum_pair(total, first, end, position, grad_rows)
            square = 0.0
            for c in range(total.size):
                square += total[c] * total[c]
        out[pair] = square


@compiled
def add_row_sums(
    out: Grads,
    selected: I64,
    offset: int,
    survivors: I64,
    rows: I64,
    row_starts: I64,
    position: I64,
    examples: I64,
    weights: Grads,
    grad_rows: GradRows,
) -> None:
    """Add to each surviving row the sum of its lookups' gradients, each times its example's weight.

    ``survivors`` are positions among the order's ``rows``. Row n of ``out`` belongs to row ``selected[n]`` of the
    table (ascending, including every survivor), or to row n if ``selected`` is empty. Examples of weight 0 are
    skipped, also if their gradient is not finite. An example's lookups of one row are summed first: they may
    cancel, and must not cost the other examples precision.
    """
    base, scales = grad_rows[0], grad_rows[5]
    total, of_pair = np.empty(grad_rows[3], np.float64), np.empty(grad_rows[3], np.float64)
    target = 0
    for survivor in survivors:
        total[:] = 0.0
        end = row_starts[survivor]
        while end < row_starts[survivor + 1]:
            at, example = end, examples[position[end]]
            end += 1
            while end < row_starts[survivor + 1] and examples[position[end]] == example:
                end += 1
            weight = np.float64(weights[example])
            if weight == 0.0:
                continue
            if end > at + 1:
                _sum_pair(of_pair, at, end, position, grad_rows)
                for c in range(of_pair.size):
                    total[c] += weight * of_pair[c]
                continue
            lookup = position[at] - base
            if scales.size:
                weight *= scales[lookup]
            grad_row = _grad_row(lookup, grad_rows)
            for c in range(grad_row.size):
                total[c] += weight * grad_row[c]
        row = rows[survivor] - offset
        if selected.size:
            while selected[target] < row:
                target += 1
        else:
            target = row
        for c in range(total.size):
            out[target, c] += total[c]


@compiled_sums
def add_masked_squares(
    out: F64,
    positions: I64,
    mask: Grads,
    row_pairs: I64,
    pair_starts: I64,
    pair_example: I64,
    position: I64,
    grad_rows: GradRows,
) -> None:
    """Add to each example its squared norm over the coordinates in ``mask[positions[row]]`` (-1: none)."""
    total = np.empty(grad_rows[3], np.float64)
    for row in range(positions.size):
        if positions[row] < 0:
            continue
        flags = mask[positions[row]]
        for pair in range(row_pairs[row], row_pairs[row + 1]):
            _sum_pair(total, pair_starts[pair], pair_starts[pair + 1], position, grad_rows)
            square = 0.0
            for c in range(total.size):
                square += flags[c] * total[c] * total[c]
            out[pair_example[pair]] += square


@compiled
def add_example_sums(out: F64, squares: F64, survivors: I64, row_pairs: I64, pair_example: I64) -> None:
    """Add to each example the sum of its pairs' squares over the surviving rows (positions in the order)."""
    for row in survivors:
        for pair in range(row_pairs[row], row_pairs[row + 1]):
            out[pair_example[pair]] += squares[pair]


@compiled
def clipped_counts(
    counts: F64, counted: Bools, row_pairs: I64, pair_example: I64, finite: Bools, norm: float
) -> None:
    """Per row, ``sum_i v_i min(1, norm / ||v_i||)`` with ``v_i`` binary over the counted rows; others get zero.

    Empty ``counted``: all rows are counted.
    """
    weights = np.zeros(finite.size, np.float64)
    for row in range(counts.size):
        if counted.size == 0 or counted[row]:
            for pair in range(row_pairs[row], row_pairs[row + 1]):
                weights[pair_example[pair]] += 1.0
    for example in range(finite.size):
        example_norm = np.sqrt(weights[example])
        weights[example] = (
            0.0 if not finite[example] else 1.0 if example_norm <= norm else norm / example_norm
        )
    for row in range(counts.size):
        counts[row] = 0.0
        if counted.size == 0 or counted[row]:
            for pair in range(row_pairs[row], row_pairs[row + 1]):
                counts[row] += weights[pair_example[pair]]
