"""Row-sparse data: everything about an embedding is (ids, values), never a table."""

from sparsedp.rows.counts import RowCounts, contains
from sparsedp.rows.gradient import RowGradient
from sparsedp.rows.occurrences import Occurrences
from sparsedp.rows.readings import Readings
from sparsedp.rows.space import RowSpace, divide

__all__ = [
    "Occurrences",
    "Readings",
    "RowCounts",
    "RowGradient",
    "RowSpace",
    "contains",
    "divide",
]
