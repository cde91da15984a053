"""Positions and column counts of the lines of a block, for blocks that a parser refuses."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Separated:
    """How a text is cut into columns: separator, quote character (None: no quoting), number of columns."""

    separator: str
    quote: str | None
    columns: int

    def is_even(self, text: bytes, lines: int) -> bool:
        """Whether the separators of a text without quotes are as many as its lines need.

        Together with a parser that refuses a line with too many columns this proves that none has too few,
        which polars would fill with nulls.
        """
        separators = np.count_nonzero(np.frombuffer(text, np.uint8) == ord(self.separator))
        return int(separators) == lines * (self.columns - 1)

    def lines(self, text: bytes) -> Lines:
        """Find the lines of a text and count the columns of each."""
        data = np.frombuffer(text, np.uint8)
        breaks, separators = data == ord("\n"), data == ord(self.separator)
        every_break = np.flatnonzero(breaks)
        if self.quote is not None:
            outside = ~np.logical_xor.accumulate(data == ord(self.quote))
            breaks, separators = breaks & outside, separators & outside
        ends = np.flatnonzero(breaks) + 1
        if len(data) and (len(ends) == 0 or ends[-1] < len(data)):
            ends = np.append(ends, len(data))
        starts = np.append(0, ends[:-1])[: len(ends)]
        before = np.searchsorted(np.flatnonzero(separators), ends)
        return Lines(
            data=data,
            lengths=ends - starts,
            columns=np.diff(before, prepend=0) + 1,
            numbers=np.searchsorted(every_break, starts),
        )


@dataclass(frozen=True)
class Lines:
    """The lines of a text: lengths with the line break, columns, and numbers in the text, from 0."""

    data: NDArray[np.uint8]
    lengths: NDArray[np.int64]
    columns: NDArray[np.int64]
    numbers: NDArray[np.int64]

    def keep(self, which: NDArray[np.bool_]) -> bytes:
        """Return the text of the chosen lines."""
        return self.data[np.repeat(which, self.lengths)].tobytes()
