"""The lookups of a batch in the order of the rows they read: the one sort of a step."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from sparsedp.core.arrays import I64
from sparsedp.core.compiled import compiled


class Order(NamedTuple):
    """Lookups sorted by (row, position), and where rows and (row, example) pairs begin among them."""

    position: I64
    """Where each of the sorted lookups stood."""
    rows: I64
    """The distinct rows read, sorted."""
    row_starts: I64
    """Where each of ``rows`` begins among the sorted lookups, and the end."""
    row_pairs: I64
    """Where each of ``rows`` begins among the pairs, and the end."""
    pair_starts: I64
    """Where each distinct (row, example) begins among the sorted lookups, and the end."""
    pair_example: I64


def order_by_row(numbers: I64, examples: I64, limit: int, table_starts: Sequence[int]) -> Order:
    """Sort lookups by the number of the row they read, all below ``limit``.

    The lookups stand table after table, from ``table_starts`` on, and each table's numbers are above those of the
    one before: each is sorted for itself. Where a row is read more than once its lookups must stand in the
    order of their examples.
    """
    bits = max(int(numbers.size - 1).bit_length(), 1)
    found = np.empty((5, numbers.size + 1), np.int64)
    if limit.bit_length() + bits > 63:
        position = np.argsort(numbers, kind="stable")
        row_count, pair_count = _find_starts(numbers[position], position, examples, found)
    else:
        # Packed into one word with its position, a number is sorted by numpy's vectorised sort.
        words, position = np.empty_like(numbers), np.empty_like(numbers)
        _pack(numbers, bits, words)
        for start, end in pairwise((*table_starts, words.size)):
            words[start:end].sort()
        row_count, pair_count = _unpack_and_find_starts(words, bits, position, examples, found)
    return Order(
        position,
        rows=found[0, :row_count],
        row_starts=found[1, : row_count + 1],
        row_pairs=found[2, : row_count + 1],
        pair_starts=found[3, : pair_count + 1],
        pair_example=found[4, :pair_count],
    )


@compiled
def _pack(numbers: I64, bits: int, words: I64) -> None:
    for n in range(numbers.size):
        words[n] = numbers[n] << bits | n


@compiled
def _find_starts(numbers: I64, position: I64, examples: I64, found: I64) -> tuple[int, int]:
    """Fill in an order's rows, row_starts, row_pairs, pair_starts and pair_example; how many rows and pairs."""
    rows, row_starts, row_pairs, pair_starts, pair_example = found[0], found[1], found[2], found[3], found[4]
    row = pair = 0
    for n in range(numbers.size):
        example = examples[position[n]]
        new_row = n == 0 or numbers[n] != numbers[n - 1]
        if new_row:
            rows[row], row_starts[row], row_pairs[row] = numbers[n], n, pair
            row += 1
        if new_row or example != pair_example[pair - 1]:
            pair_starts[pair], pair_example[pair] = n, example
            pair += 1
    row_starts[row], row_pairs[row], pair_starts[pair] = numbers.size, pair, numbers.size
    return row, pair


@compiled
def _unpack_and_find_starts(
    words: I64, bits: int, position: I64, examples: I64, found: I64
) -> tuple[int, int]:
    """The same from packed words, in whose place the numbers are left."""
    for n in range(words.size):
        position[n] = words[n] & (1 << bits) - 1
        words[n] >>= bits
    return _find_starts(words, position, examples, found)
