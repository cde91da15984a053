"""Sums and squared norms of the gradients of readings that lie together in an ``Order``.

Arrays that two loops share: ``position`` (of an order), ``base`` (the table's first reading among all), and the
table's ``grads``, ``sources`` and ``scales`` as ``Occurrences`` has them, the last two empty where it has None.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparsedp.compiled import compiled, compiled_sums

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Grads = NDArray[Any]
"""float32 or float64, one line a source."""


@compiled_sums
def pair_squares(
    out: Floats, pair_starts: Ints, position: Ints, base: int, grads: Grads, sources: Ints, scales: Grads
) -> None:
    """The squared norm of each pair's gradient, the sum over its readings."""
    total = np.empty(grads.shape[1], np.float64)
    for pair in range(out.size):
        first, end = pair_starts[pair], pair_starts[pair + 1]
        square = 0.0
        if end == first + 1:
            reading = position[first] - base
            line = grads[sources[reading] if sources.size else reading]
            for c in range(line.size):
                square += np.float64(line[c]) * np.float64(line[c])
            if scales.size:
                square *= np.float64(scales[reading]) * np.float64(scales[reading])
        else:
            total[:] = 0.0
            for n in range(first, end):
                reading = position[n] - base
                line = grads[sources[reading] if sources.size else reading]
                scale = np.float64(scales[reading]) if scales.size else 1.0
                for c in range(line.size):
                    total[c] += scale * line[c]
            for c in range(total.size):
                square += total[c] * total[c]
        out[pair] = square


@compiled
def row_sums(
    out: Grads,
    rows: Ints,
    row_starts: Ints,
    position: Ints,
    examples: Ints,
    weights: Grads,
    base: int,
    grads: Grads,
    sources: Ints,
    scales: Grads,
) -> None:
    """For each of the ``rows`` (places in the order) the sum of its readings' gradients, each times its example's weight.

    What has no weight does not enter, whatever its gradient is.
    """
    total = np.empty(grads.shape[1], np.float64)
    for n in range(rows.size):
        total[:] = 0.0
        for at in range(row_starts[rows[n]], row_starts[rows[n] + 1]):
            weight = np.float64(weights[examples[position[at]]])
            if weight == 0.0:
                continue
            reading = position[at] - base
            if scales.size:
                weight *= scales[reading]
            line = grads[sources[reading] if sources.size else reading]
            for c in range(line.size):
                total[c] += weight * line[c]
        for c in range(total.size):
            out[n, c] = total[c]


@compiled
def add_rows(out: Grads, lines: Ints, values: Grads) -> None:
    """``out[lines[n]] += values[n]``."""
    for n in range(lines.size):
        for c in range(values.shape[1]):
            out[lines[n], c] += values[n, c]


@compiled_sums
def add_masked_squares(
    out: Floats,
    lines: Ints,
    mask: Grads,
    row_pairs: Ints,
    pair_starts: Ints,
    pair_example: Ints,
    position: Ints,
    base: int,
    grads: Grads,
    sources: Ints,
    scales: Grads,
) -> None:
    """Add to each example its squared norm over the coordinates that ``mask[lines[row]]`` flags (line -1: none)."""
    total = np.empty(grads.shape[1], np.float64)
    for row in range(lines.size):
        if lines[row] < 0:
            continue
        flags = mask[lines[row]]
        for pair in range(row_pairs[row], row_pairs[row + 1]):
            total[:] = 0.0
            for n in range(pair_starts[pair], pair_starts[pair + 1]):
                reading = position[n] - base
                line = grads[sources[reading] if sources.size else reading]
                scale = np.float64(scales[reading]) if scales.size else 1.0
                for c in range(line.size):
                    total[c] += scale * line[c]
            square = 0.0
            for c in range(total.size):
                square += flags[c] * total[c] * total[c]
            out[pair_example[pair]] += square


@compiled
def example_sums(
    squares: Floats, row_survives: Flags, row_pairs: Ints, pair_example: Ints, examples: int
) -> Floats:
    """Per example the sum of its pairs' squares over the surviving rows."""
    sums = np.zeros(examples, np.float64)
    for row in range(row_survives.size):
        if row_survives[row]:
            for pair in range(row_pairs[row], row_pairs[row + 1]):
                sums[pair_example[pair]] += squares[pair]
    return sums


@compiled
def clipped_counts(counted: Flags, row_pairs: Ints, pair_example: Ints, finite: Flags, norm: float) -> Floats:
    """Per row, ``sum_i v_i min(1, norm / ||v_i||)`` with ``v_i`` binary over the counted rows; others get zero."""
    weights = np.zeros(finite.size, np.float64)
    for row in range(counted.size):
        if counted[row]:
            for pair in range(row_pairs[row], row_pairs[row + 1]):
                weights[pair_example[pair]] += 1.0
    for example in range(finite.size):
        length = np.sqrt(weights[example])
        weights[example] = 0.0 if not finite[example] else 1.0 if length <= norm else norm / length
    counts = np.zeros(counted.size, np.float64)
    for row in range(counted.size):
        if counted[row]:
            for pair in range(row_pairs[row], row_pairs[row + 1]):
                counts[row] += weights[pair_example[pair]]
    return counts
