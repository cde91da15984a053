"""Cuts every user of a data set to so many rows while it is prepared, in one pass over the files."""

from __future__ import annotations

import numpy as np
import polars as pl

from sparsedp.core.arrays import I64, Bools
from sparsedp.core.validation import check_count

UNREAD = "\ufffd"
"""What stands for a character that could not be read."""


def user_ids(values: pl.Series) -> pl.Series:
    """The users of rows as texts; null where there is none: missing, empty, not a number in a column of floats, or with
    characters that could not be read.

    A user has one text in all files: spaces around it are dropped, and so is the ".0" that integers get where a column
    with gaps became floats. Two texts for one user would double its rows; rows of nobody are not those of one user,
    and nor are those of users whose names differ in a character that is not UTF-8: to remove one of them would exchange
    what the other is, which moves a step twice as far as to remove it.
    """
    texts = values.cast(pl.String)
    if values.dtype.is_float():
        whole = values.cast(pl.Int64, strict=False)
        is_whole = (whole.cast(values.dtype) == values).fill_null(False)
        texts = whole.cast(pl.String).zip_with(is_whole, texts.set(values.is_nan(), None))
    texts = texts.str.strip_chars().str.replace(r"^([+-]?\d+)\.0+$", "$1")
    return texts.set((texts == "") | texts.str.contains(UNREAD, literal=True), None)


class UserCap:
    """Keeps the first ``rows_per_user`` rows of each user, in the order in which they come.

    Guarantee: no user has more rows in what remains, and which rows of a user remain depends on that user's rows
    alone, so to remove a user from the files removes at most ``rows_per_user`` rows. Users are told apart by a 64-bit
    hash: two of n share one with probability below n^2 / 2^65. Memory: 16 bytes a user.
    """

    def __init__(self, rows_per_user: int) -> None:
        self.rows_per_user = check_count("rows_per_user", rows_per_user)
        self._users: I64 = np.empty(0, np.int64)
        self._taken: I64 = np.empty(0, np.int64)

    @property
    def users(self) -> int:
        """How many users were seen."""
        return self._users.size

    def keep(self, users: I64) -> Bools:
        """Which of the next rows remain, given the user of each."""
        own, inverse, counts = np.unique(users, return_inverse=True, return_counts=True)
        order = np.argsort(inverse, kind="stable")
        earlier_in_block = np.empty(users.size, np.int64)
        earlier_in_block[order] = np.arange(users.size) - np.repeat(np.cumsum(counts) - counts, counts)
        place = self._places_of(own)
        earlier = self._taken[place]
        remain: Bools = earlier[inverse] + earlier_in_block < self.rows_per_user
        self._taken[place] = np.minimum(earlier + counts, self.rows_per_user)
        return remain

    def _places_of(self, own: I64) -> I64:
        """Where these users (ascending) are among all seen; new ones are added."""
        place = np.searchsorted(self._users, own)
        known = place < self._users.size
        known[known] = self._users[place[known]] == own[known]
        if not known.all():
            self._users = np.insert(self._users, place[~known], own[~known])
            self._taken = np.insert(self._taken, place[~known], 0)
            place = np.searchsorted(self._users, own)
        return place
