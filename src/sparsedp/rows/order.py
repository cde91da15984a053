"""The lookups of a batch sorted by the row they read: the only sort of a step."""

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
    """The original position of each sorted lookup."""
    rows: I64
    """The distinct rows read, sorted."""
    row_starts: I64
    """Where each of ``rows`` begins among the sorted lookups, and the end."""
    row_pairs: I64
    """Where each of ``rows`` begins among the pairs, and the end."""
    pair_starts: I64
    """Where each distinct (row, example) begins among the sorted lookups, and the end."""
    pair_example: I64


def order_by_row(row_ids: I64, examples: I64, limit: int, table_starts: Sequence[int]) -> Order:
    """Sort lookups by the global id of the row they read, all below ``limit``.

    The lookups are grouped by table, starting at ``table_starts``, and each table's ids are above those of the
    previous one, so each table is sorted separately. The lookups of one row must be in the order of their examples.
    """
    bits = max(int(row_ids.size - 1).bit_length(), 1)
    starts = np.empty((5, row_ids.size + 1), np.int64)
    if limit.bit_length() + bits > 63:
        position = np.argsort(row_ids, kind="stable")
        row_count, pair_count = _find_starts(row_ids[position], position, examples, starts)
    else:
        # Packed into one word with its position, an id is sorted by numpy's vectorised sort.
        words, position = np.empty_like(row_ids), np.empty_like(row_ids)
        _pack(row_ids, bits, words)
        for start, end in pairwise((*table_starts, words.size)):
            words[start:end].sort()
        row_count, pair_count = _unpack_and_find_starts(words, bits, position, examples, starts)
    return Order(
        position,
        rows=starts[0, :row_count],
        row_starts=starts[1, : row_count + 1],
        row_pairs=starts[2, : row_count + 1],
        pair_starts=starts[3, : pair_count + 1],
        pair_example=starts[4, :pair_count],
    )


@compiled
def _pack(row_ids: I64, bits: int, words: I64) -> None:
    for n in range(row_ids.size):
        words[n] = row_ids[n] << bits | n


@compiled
def _find_starts(row_ids: I64, position: I64, examples: I64, starts: I64) -> tuple[int, int]:
    """Fill in rows, row_starts, row_pairs, pair_starts and pair_example; returns the numbers of rows and pairs."""
    rows, row_starts, row_pairs, pair_starts, pair_example = (
        starts[0],
        starts[1],
        starts[2],
        starts[3],
        starts[4],
    )
    row = pair = 0
    for n in range(row_ids.size):
        example = examples[position[n]]
        new_row = n == 0 or row_ids[n] != row_ids[n - 1]
        if new_row:
            rows[row], row_starts[row], row_pairs[row] = row_ids[n], n, pair
            row += 1
        if new_row or example != pair_example[pair - 1]:
            pair_starts[pair], pair_example[pair] = n, example
            pair += 1
    row_starts[row], row_pairs[row], pair_starts[pair] = row_ids.size, pair, row_ids.size
    return row, pair


@compiled
def _unpack_and_find_starts(
    words: I64, bits: int, position: I64, examples: I64, starts: I64
) -> tuple[int, int]:
    """The same from packed words, which are overwritten with the ids."""
    for n in range(words.size):
        position[n] = words[n] & (1 << bits) - 1
        words[n] >>= bits
    return _find_starts(words, position, examples, starts)
