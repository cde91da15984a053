"""The hash of ``hashing`` in one compiled loop over a column, for rows to predict.

A preparation hashes with numpy, and so starts without the compiler (numba), which takes longer to load than some
hundred thousand rows to hash. A model in use has it loaded, and saves the passes over memory that an array operation makes.
"""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from sparsedp.core.arrays import U64
from sparsedp.core.compiled import compiled
from sparsedp.data.hashing import GAMMA, INLINE, MISSING, check_rows, hash_of_length, view_words, views

_KEEP = np.array([(1 << 8 * first) - 1 for first in range(9)], np.uint64)
"""Words that keep the first 0 to 8 bytes of eight."""
_NO_MASK = np.empty(0, np.bool_)


def hash_strings(values: pl.Series) -> U64:
    """What ``hashing.hash_strings`` gives."""
    hashes = np.empty(len(values), np.uint64)
    done = 0
    for view in views(values):
        words, here = view_words(view), hashes[done : done + len(view)]
        missing = view.is_null().to_numpy(zero_copy_only=False) if view.null_count else _NO_MASK
        if _hash_words(words, missing, _KEEP, here):
            for number, buffer in enumerate(view.buffers()[2:]):
                _hash_long(words, missing, number, np.frombuffer(buffer, np.uint8), here)
        done += len(view)
    return hashes


def hash_hex(values: pl.Series) -> tuple[U64, NDArray[np.bool_]]:
    """What ``criteo.hash_hex`` gives: hashes of eight hex digits, and which values are that or empty."""
    hashes, right = np.empty(len(values), np.uint64), np.empty(len(values), np.bool_)
    done = 0
    for view in views(values):
        missing = view.is_null().to_numpy(zero_copy_only=False) if view.null_count else _NO_MASK
        here = slice(done, done + len(view))
        _hash_hex_words(view_words(view), missing, hash_of_length(8), hashes[here], right[here])
        done += len(view)
    return hashes, right


def write_buckets(hashes: U64, rows: int, out: NDArray[np.int32]) -> None:
    """Write what ``hashing.buckets`` gives into an array, a column of ids."""
    check_rows(rows)
    _write_buckets(hashes, rows, out)


@compiled
def _mix(value: np.uint64) -> np.uint64:
    """``hashing.mix`` of one word."""
    value = value ^ (value >> np.uint64(30))
    value = value * np.uint64(0xBF58476D1CE4E5B9)
    value = value ^ (value >> np.uint64(27))
    value = value * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


@compiled
def _hash_words(words: NDArray[np.uint32], missing: NDArray[np.bool_], keep: U64, hashes: U64) -> int:
    """Hash the strings that lie inside their views; returns how many do not."""
    long = 0
    for at in range(len(hashes)):
        length = words[at, 0]
        if length == 0 or (len(missing) and missing[at]):
            hashes[at] = 0
            continue
        if length > INLINE:
            long += 1
            continue
        first = np.uint64(words[at, 1]) | np.uint64(words[at, 2]) << np.uint64(32)
        folded = _mix(_mix(np.uint64(length) * GAMMA) ^ (first & keep[min(length, 8)]))
        if length > 8:
            folded = _mix(folded ^ (np.uint64(words[at, 3]) & keep[length - 8]))
        hashes[at] = folded
    return long


@compiled
def _hash_long(
    words: NDArray[np.uint32],
    missing: NDArray[np.bool_],
    number: int,
    data: NDArray[np.uint8],
    hashes: U64,
) -> None:
    """Hash the longer strings whose text lies in one of the data buffers."""
    for at in range(len(hashes)):
        length = words[at, 0]
        if length <= INLINE or words[at, 2] != number or (len(missing) and missing[at]):
            continue
        start = words[at, 3]
        folded = _mix(np.uint64(length) * GAMMA)
        for done in range(0, length, 8):
            word = np.uint64(0)
            for byte in range(min(8, length - done)):
                word |= np.uint64(data[start + done + byte]) << np.uint64(8 * byte)
            folded = _mix(folded ^ word)
        hashes[at] = folded


@compiled
def _hash_hex_words(
    words: NDArray[np.uint32],
    missing: NDArray[np.bool_],
    start: np.uint64,
    hashes: U64,
    right: NDArray[np.bool_],
) -> None:
    """Hash eight hex digits in either case; how they are told is said in ``criteo.hash_hex``."""
    every, high = np.uint64(0x0101010101010101), np.uint64(0x8080808080808080)
    for at in range(len(hashes)):
        length = words[at, 0]
        if length == 0 or (len(missing) and missing[at]):
            hashes[at], right[at] = 0, True
            continue
        word = np.uint64(words[at, 1]) | np.uint64(words[at, 2]) << np.uint64(32)
        wide = word & high
        not_digit = (word ^ np.uint64(0x30) * every) + np.uint64(0x76) * every
        word |= np.uint64(0x20) * every
        letter = word ^ np.uint64(0x60) * every
        not_letter = (letter + np.uint64(0x79) * every) | ~(letter + np.uint64(0x7F) * every)
        right[at] = length == 8 and (not_digit & not_letter & high) | wide == 0
        hashes[at] = _mix(word ^ start)


@compiled
def _write_buckets(hashes: U64, rows: int, out: NDArray[np.int32]) -> None:
    buckets = np.uint64(rows - 1)
    for at in range(len(out)):
        bucket = np.int32((hashes[at] >> np.uint64(32)) * buckets >> np.uint64(32)) + 1
        out[at] = MISSING if hashes[at] == 0 else bucket
