"""Which types a raw column may have in each role. Text files have texts alone; Parquet has types of every kind."""

from __future__ import annotations

import polars as pl


def is_number(kind: pl.DataType) -> bool:
    """Whether values of a type are numbers, or texts that may be."""
    return kind.is_numeric() or kind in (pl.String, pl.Boolean, pl.Null)


def has_text(kind: pl.DataType) -> bool:
    """Whether every value of a type can be written as a text."""
    return not (kind.is_nested() or kind in (pl.Binary, pl.Object))


def is_bag(kind: pl.DataType) -> bool:
    """Whether a value of a type is several: a list, or a text to cut."""
    inner = kind.inner if isinstance(kind, pl.List | pl.Array) else None
    return kind in (pl.String, pl.Null) or (inner is not None and has_text(inner))  # type: ignore[arg-type]


def is_time(kind: pl.DataType) -> bool:
    """Whether values of a type lie on one line of time."""
    return kind.is_numeric() or kind in (pl.String, pl.Null, pl.Date, pl.Datetime)


_ROLES = {
    "label": (is_number, "numbers"),
    "numeric": (is_number, "numbers"),
    "categorical": (has_text, "texts or integers"),
    "cross": (has_text, "texts or integers"),
    "user": (has_text, "texts or integers"),
    "multi-hot": (is_bag, "lists, or texts to cut"),
    "time": (is_time, "numbers, dates or timestamps"),
}


def check_type(role: str, name: str, kind: pl.DataType) -> None:
    """Refuse a column that holds nothing which its role could read."""
    fits, expected = _ROLES[role]
    if not fits(kind):
        raise ValueError(f"{role}: column {name!r} must hold {expected}, and holds {kind}")
