"""What the FEST paper publishes about its Criteo model."""

from __future__ import annotations

VOCABULARY_SIZES = (
    *(1472, 577, 82741, 18940, 305, 23, 1172, 633, 3, 9090, 5918, 64300, 3207),
    *(27, 1550, 44262, 10, 5485, 2161, 3, 56473, 17, 15, 27360, 104, 12934),
)
"""The rows of the tables of its 26 categorical features, in order (its Table 3)."""

BATCH_SIZE = 2048
"""Its batch size for click models."""


def embedding_dim(rows: int) -> int:
    """The paper's width of a table of V rows: ``int(2 V^0.25)``."""
    return int(2 * rows**0.25)
