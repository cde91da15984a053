"""A column of lists as its values in a row and the offsets between the lists, as Arrow stores it."""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray


def flatten(lists: pl.Series) -> tuple[pl.Series, NDArray[np.int64]]:
    """Return all values and n + 1 offsets: list i is `values[offsets[i]:offsets[i + 1]]`; null is empty."""
    arrow = lists.fill_null([]).rechunk().to_arrow(compat_level=pl.CompatLevel.oldest())
    offsets = arrow.offsets.to_numpy().astype(np.int64)
    values = pl.Series(arrow.values)
    return values.slice(int(offsets[0]), int(offsets[-1] - offsets[0])), offsets - offsets[0]
