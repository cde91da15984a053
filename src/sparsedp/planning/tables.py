"""The embedding tables a plan is made for: their public shapes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from sparsedp.core.criteo import VOCABULARY_SIZES, embedding_dim
from sparsedp.core.tables import TableShape
from sparsedp.core.text_files import parse_json, read_text

_TEXT = re.compile(r"(?:(?P<name>[^=]+)=)?(?P<rows>[^x=]+)x(?P<dim>[^x=]+)(?:x(?P<values>[^x=]+))?")


def parse_table(text: str) -> TableShape:
    """A table from `ROWSxDIM`, `ROWSxDIMxVALUES` or `NAME=ROWSxDIM`."""
    found = _TEXT.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"table must be written ROWSxDIM or NAME=ROWSxDIMxVALUES, got {text!r}")
    numbers = {}
    for field in ("rows", "dim", "values"):
        digits = found[field] or "1"
        if not re.fullmatch(r"-?\d{1,99}", digits.strip()):
            raise ValueError(f"{field} of table {text!r} must be a whole number, got {digits!r}")
        numbers[field] = int(digits)
    return TableShape(found["name"] or "", **numbers)


def criteo_tables() -> tuple[TableShape, ...]:
    """The 26 tables of the FEST paper's Criteo model."""
    return tuple(
        TableShape(f"C{number}", rows, embedding_dim(rows))
        for number, rows in enumerate(VOCABULARY_SIZES, start=1)
    )


def read_tables(path: str | Path) -> tuple[TableShape, ...]:
    """Tables from a JSON file: a list of objects with `rows`, `dim` and, optionally, `values` and `name`."""
    path = Path(path)
    if path.exists() and not path.is_file():
        raise ValueError(f"tables: {path} is not a regular file")
    entries = parse_json(read_text(path), f"tables: {path}")
    if not isinstance(entries, list):
        raise ValueError(f"tables: {path} must hold a list of objects with rows and dim")
    tables = []
    for number, entry in enumerate(entries, start=1):
        allowed = {"rows", "dim", "values", "name"}
        if not isinstance(entry, dict) or not {"rows", "dim"} <= entry.keys() <= allowed:
            raise ValueError(
                f"tables: entry {number} of {path} must have rows and dim, maybe values and name"
            )
        if not isinstance(entry.get("name", ""), str):
            raise ValueError(f"tables: the name in entry {number} of {path} must be a text")
        tables.append(TableShape(**{"name": "", **entry}))
    return tuple(tables)


def check_tables(tables: Sequence[TableShape]) -> tuple[TableShape, ...]:
    """The tables, each with a name of its own; an empty list or anything that is no table is refused."""
    tables = tuple(tables)
    if not tables:
        raise ValueError("tables must not be empty: a plan needs at least one embedding table")
    for table in tables:
        if not isinstance(table, TableShape):
            raise ValueError(f"tables must hold TableShape(name, rows, dim, values), got {table!r}")
    return tuple(
        table if table.name else replace(table, name=f"table-{number}")
        for number, table in enumerate(tables, start=1)
    )
