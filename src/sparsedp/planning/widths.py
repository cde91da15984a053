"""How wide the rows of each table should be where a selection of rows trains."""

from __future__ import annotations

import math
from collections.abc import Sequence

from sparsedp.core.tables import is_one_each, table_scales
from sparsedp.core.validation import check_scale

WIDTH = 8
"""Of a row that many examples read."""
EXAMPLES_PER_COORDINATE = 20
"""What a table must have, for each of its rows, to pay for one more coordinate in all of them."""


NARROW = (
    f"rows are up to {WIDTH} wide where their table has {EXAMPLES_PER_COORDINATE} examples a row for each coordinate, narrower "
    "elsewhere: few examples teach a row one number; the scales make up for it"
)
"""Why widths differ."""


def widths(rows: Sequence[int], examples: int) -> list[int]:
    """A power of two up to ``WIDTH`` for tables of so many rows: a row that few examples read has one number to learn.

    The gradient of a table of 1 million rows and 3 million examples is then 8 times smaller, for the same AUC.
    """
    affordable = [examples / (EXAMPLES_PER_COORDINATE * each) for each in rows]
    return [min(WIDTH, 1 << max(0, math.floor(math.log2(each)))) for each in affordable]


def scales(scale: float, dims: Sequence[int]) -> list[float]:
    """``scale`` for rows of ``WIDTH``, more for narrower ones, so that the norm of a row's gradient is the same."""
    return [_rounded(scale * math.sqrt(WIDTH / dim)) for dim in dims]


def scale_at_full_width(scale: float | Sequence[float], dims: Sequence[int]) -> float:
    """The largest of the tables' scales, each brought to ``WIDTH``; what one number says is for ``WIDTH``."""
    if not is_one_each(scale):
        return check_scale("table_scale", scale)
    scales = zip(table_scales(scale, len(dims)), dims, strict=True)
    return _rounded(max((each * math.sqrt(dim / WIDTH) for each, dim in scales), default=1.0))


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")
