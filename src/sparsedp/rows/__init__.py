"""Row-sparse data: everything about an embedding is (ids, values), never a table."""

from sparsedp.rows.gradient import RowGradient
from sparsedp.rows.lookups import EmbeddingLookups
from sparsedp.rows.sorted_lookups import SortedLookups
from sparsedp.rows.space import RowSpace, partition_tables
from sparsedp.rows.units import Units

__all__ = [
    "EmbeddingLookups",
    "RowGradient",
    "RowSpace",
    "SortedLookups",
    "Units",
    "partition_tables",
]
