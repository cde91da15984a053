"""The readings of a batch in the order of the rows they read: the one sort of a step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sparsedp.compiled import compiled

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Order:
    """Readings sorted by (row, position), and where rows and (row, example) pairs begin among them."""

    position: Ints
    """Where each of the sorted readings stood."""
    rows: Ints
    """The distinct rows read, sorted."""
    row_starts: Ints
    """Where each of ``rows`` begins among the sorted readings, and the end."""
    row_pairs: Ints
    """Where each of ``rows`` begins among the pairs, and the end."""
    pair_starts: Ints
    """Where each distinct (row, example) begins among the sorted readings, and the end."""
    pair_example: Ints


def order_by_row(numbers: Ints, examples: Ints, limit: int) -> Order:
    """Sort readings by the number of the row they read, all below ``limit``.

    Where a row is read more than once its readings must stand in the order of their examples.
    """
    numbers, position = _sort_with_position(numbers, limit)
    return Order(position, *_find_starts(numbers, position, examples))


def _sort_with_position(numbers: Ints, limit: int) -> tuple[Ints, Ints]:
    """Sorted numbers and where each stood. Packed into one word numpy's vectorised sort does both at once."""
    bits = max(int(numbers.size - 1).bit_length(), 1)
    if limit.bit_length() + bits <= 63:
        packed = np.sort(_pack(numbers, bits))
        return _unpack(packed, bits)
    position = np.argsort(numbers, kind="stable")
    return numbers[position], position


@compiled
def _pack(numbers: Ints, bits: int) -> Ints:
    packed = np.empty_like(numbers)
    for n in range(numbers.size):
        packed[n] = numbers[n] << bits | n
    return packed


@compiled
def _unpack(packed: Ints, bits: int) -> tuple[Ints, Ints]:
    numbers, position = np.empty_like(packed), np.empty_like(packed)
    for n in range(packed.size):
        numbers[n] = packed[n] >> bits
        position[n] = packed[n] & (1 << bits) - 1
    return numbers, position


@compiled
def _find_starts(numbers: Ints, position: Ints, examples: Ints) -> tuple[Ints, Ints, Ints, Ints, Ints]:
    """Rows, where each begins among readings and pairs, where each pair begins, and whose it is."""
    total = numbers.size
    rows, row_starts, row_pairs = (
        np.empty(total, np.int64),
        np.empty(total + 1, np.int64),
        np.empty(total + 1, np.int64),
    )
    pair_starts, pair_example = np.empty(total + 1, np.int64), np.empty(total, np.int64)
    row = pair = 0
    for n in range(total):
        example = examples[position[n]]
        new_row = n == 0 or numbers[n] != numbers[n - 1]
        if new_row:
            rows[row], row_starts[row], row_pairs[row] = numbers[n], n, pair
            row += 1
        if new_row or example != pair_example[pair - 1]:
            pair_starts[pair], pair_example[pair] = n, example
            pair += 1
    row_starts[row], row_pairs[row], pair_starts[pair] = total, pair, total
    return (
        rows[:row],
        row_starts[: row + 1],
        row_pairs[: row + 1],
        pair_starts[: pair + 1],
        pair_example[:pair],
    )
