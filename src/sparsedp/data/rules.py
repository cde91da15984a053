"""From the hash of a value to its id: buckets, or a vocabulary. Id 0 is for missing and unlisted values."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from sparsedp.core.arrays import I64, U64
from sparsedp.data.hashing import MISSING, buckets, check_rows

KEY_BITS = 40
"""A vocabulary lists 40-bit keys (the top of the hash): 1e7 values have about 45 key collisions."""


def keys_of(hashes: U64) -> I64:
    """Return the vocabulary key of every hash."""
    return (hashes >> np.uint64(64 - KEY_BITS)).astype(np.int64)


class IdRule(Protocol):
    """A public rule from hashes to ids."""

    @property
    def rows(self) -> int:
        """The height of the table that the ids index."""

    @property
    def description(self) -> str:
        """All that decides the ids, in words."""

    def ids(self, hashes: U64) -> NDArray[np.int32]:
        """Return the id of every hash."""


@dataclass(frozen=True)
class HashRule:
    """Ids by hash buckets: nothing is learned, every future value has an id."""

    rows: int

    def __post_init__(self) -> None:
        check_rows(self.rows)

    @property
    def description(self) -> str:
        """What decides the ids."""
        return f"hash into {self.rows - 1} buckets"

    def ids(self, hashes: U64) -> NDArray[np.int32]:
        """Return the bucket of every hash."""
        return buckets(hashes, self.rows)


@dataclass(frozen=True, eq=False)
class VocabularyRule:
    """Ids by a list of keys: the i-th key has id i + 1, everything else id 0."""

    keys: I64

    @property
    def rows(self) -> int:
        """One row a key and row 0."""
        return len(self.keys) + 1

    @property
    def description(self) -> str:
        """What decides the ids."""
        digest = hashlib.sha256(np.ascontiguousarray(self.keys, "<i8").tobytes()).hexdigest()
        return f"vocabulary of {len(self.keys)} keys, sha256 {digest}"

    @cached_property
    def _order(self) -> tuple[I64, NDArray[np.int32]]:
        keys, first = np.unique(self.keys, return_index=True)
        return keys, (first + 1).astype(np.int32)

    def ids(self, hashes: U64) -> NDArray[np.int32]:
        """Return the id of every hash in the vocabulary."""
        keys, ids = self._order
        if len(keys) == 0:
            return np.zeros(len(hashes), np.int32)
        keys_of_hashes = keys_of(hashes)
        index = np.minimum(np.searchsorted(keys, keys_of_hashes), len(keys) - 1)
        return np.where((keys[index] == keys_of_hashes) & (hashes != 0), ids[index], np.int32(MISSING))
