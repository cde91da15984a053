"""The public rule from a value to an id: one 64-bit hash, the same everywhere and for ever.

A rule that looked at the data to number its values would release them; a hash looks at nothing. It is fixed
here, not borrowed from a library whose next version may hash differently, because a prepared folder, a
trained table and next year's rows must agree on it:

    hash(value)   the UTF-8 bytes, cut into little-endian 64-bit words (the last padded with zeros), folded
                  as h <- mix(h XOR word) from h = mix(length * GAMMA), `mix` being SplitMix64's finaliser
    missing       null or empty; its hash is 0 and its id is 0
    id            1 + ((hash >> 32) * (rows - 1) >> 32): the rows after row 0 are the buckets
    crossed       the hashes of the parts folded the same way from h = mix(parts * CROSS)

It is not secret and hides nothing: anyone can find colliding values. Privacy does not depend on it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from sparsedp.core.arrays import U64

GAMMA = np.uint64(0x9E3779B97F4A7C15)
CROSS = np.uint64(0xD1B54A32D192ED03)
MISSING = 0
INLINE = 12
MAX_ROWS = 2**31 - 1


def mix(values: U64) -> U64:
    """Scramble every 64-bit word, one to one: the finaliser of SplitMix64. Leaves the input as it is."""
    mixed = values ^ (values >> np.uint64(30))
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return mixed


def hash_of_length(length: int) -> np.uint64:
    """Return the state from which the words of a value of `length` bytes are folded."""
    start: np.uint64 = mix(np.array([length], np.uint64) * GAMMA)[0]
    return start


def first_words(values: pl.Series) -> Iterator[tuple[NDArray[np.uint32], U64]]:
    """Yield, chunk by chunk, the length of every string and its first 8 bytes as one word.

    Read in place from Arrow's string views, which hold a string of up to 12 bytes inside the view. The word
    of a longer or a null string means nothing; a null has length 0.
    """
    for view in views(values):
        words = view_words(view)
        yield _lengths(view), words[:, 1].astype(np.uint64) | words[:, 2].astype(np.uint64) << np.uint64(32)


def hash_strings(values: pl.Series) -> U64:
    """Hash every value of a string column by the rule above; missing values give 0."""
    return np.concatenate([_hash_views(view) for view in views(values)])


def buckets(hashes: U64, rows: int) -> NDArray[np.int32]:
    """Return the id of every hash in a table of `rows` rows, row 0 standing for missing."""
    check_rows(rows)
    ids = (hashes >> np.uint64(32)) * np.uint64(rows - 1) >> np.uint64(32)
    ids += np.uint64(1)
    ids[hashes == 0] = MISSING
    return ids.astype(np.int32)


def cross(parts: list[U64]) -> U64:
    """Hash the combination of several hashed columns; missing only where every part is."""
    folded = np.full_like(parts[0], mix(np.array([len(parts)], np.uint64) * CROSS)[0])
    missing = np.ones(len(folded), bool)
    for part in parts:
        folded = mix(folded ^ part)
        missing &= part == 0
    folded[missing] = 0
    return folded


def check_rows(rows: int, name: str = "rows") -> None:
    """Refuse a table without a bucket beside the missing row, or one whose ids do not fit 32 bits."""
    if not 2 <= rows <= MAX_ROWS:
        raise ValueError(f"{name} must lie in 2..{MAX_ROWS} (one row is for missing values), got {rows}")


def views(values: pl.Series) -> list[pa.Array]:
    """Return the chunks of a string column as Arrow's string views."""
    if values.dtype != pl.String:
        raise ValueError(f"values must be a column of strings, got {values.dtype}")
    arrays = [chunk.to_arrow(compat_level=pl.CompatLevel.newest()) for chunk in values.get_chunks()]
    return [a if a.type == pa.string_view() else a.cast(pa.string_view()) for a in arrays]


def view_words(view: pa.Array) -> NDArray[np.uint32]:
    """Return Arrow's 16-byte views as four words: length, then 12 bytes, or prefix, buffer and offset."""
    if len(view) == 0:
        return np.empty((0, 4), np.uint32)
    words = np.frombuffer(view.buffers()[1], "<u4").reshape(-1, 4)
    return words[view.offset : view.offset + len(view)]


def _lengths(view: pa.Array) -> NDArray[np.uint32]:
    lengths = view_words(view)[:, 0]
    if view.null_count:
        lengths = np.where(view.is_null().to_numpy(zero_copy_only=False), np.uint32(0), lengths)
    return lengths


def _hash_views(view: pa.Array) -> U64:
    lengths, words = _lengths(view).astype(np.uint64), view_words(view).astype(np.uint64)
    hashes = mix(lengths * GAMMA)
    first = (words[:, 1] | words[:, 2] << np.uint64(32)) & _mask(lengths)
    hashes = mix(hashes ^ first)
    second = np.flatnonzero(lengths > 8)
    hashes[second] = mix(hashes[second] ^ (words[second, 3] & _mask(lengths[second] - np.uint64(8))))
    long = np.flatnonzero(lengths > INLINE)
    if len(long):
        hashes[long] = _hash_long(view, long, lengths[long].astype(np.int64))
    hashes[lengths == 0] = 0
    return hashes


def _hash_long(view: pa.Array, where: NDArray[np.int64], lengths: NDArray[np.int64]) -> U64:
    """Fold the strings that live in the data buffers, one 8-byte word of all of them at a time."""
    words = view_words(view)[where]
    hashes = mix(lengths.astype(np.uint64) * GAMMA)
    for number, buffer in enumerate(view.buffers()[2:]):
        here = np.flatnonzero(words[:, 2] == number)
        if len(here) == 0:
            continue
        data = np.frombuffer(bytes(buffer) + bytes(8), np.uint8)
        at_every_byte = np.ndarray(len(data) - 7, "<u8", data, strides=(1,))
        start, length, folded = words[here, 3].astype(np.int64), lengths[here], hashes[here]
        for done in range(0, int(length.max()), 8):
            left = np.flatnonzero(length > done)
            word = at_every_byte[start[left] + done] & _mask((length[left] - done).astype(np.uint64))
            folded[left] = mix(folded[left] ^ word)
        hashes[here] = folded
    return hashes


def _mask(lengths: U64) -> U64:
    """Return a word that keeps the first `length` bytes of eight."""
    spare = np.uint64(64) - np.minimum(lengths, np.uint64(8)) * np.uint64(8)
    return np.where(spare == 64, np.uint64(0), np.uint64(0xFFFFFFFFFFFFFFFF) >> (spare & np.uint64(63)))
