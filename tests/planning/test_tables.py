import json
import math

import pytest

from sparsedp.core.tables import TableShape
from sparsedp.planning.tables import check_tables, criteo_tables, parse_table, read_tables


def test_the_criteo_tables_are_those_of_the_paper():
    tables = criteo_tables()
    assert len(tables) == 26
    assert sum(table.rows for table in tables) == 338_782
    assert (tables[0].rows, tables[0].dim) == (1472, 12)
    assert (tables[2].rows, tables[2].dim) == (82_741, 33)
    assert all(table.dim == math.floor(2 * table.rows**0.25) for table in tables)


@pytest.mark.parametrize(
    ("text", "table"),
    [
        ("1472x12", TableShape("", 1472, 12)),
        ("1472x12x3", TableShape("", 1472, 12, 3)),
        ("tags=1472x12x3", TableShape("tags", 1472, 12, 3)),
    ],
)
def test_a_table_can_be_written_in_a_word(text, table):
    assert parse_table(text) == table


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("1472", "table"),
        ("", "table"),
        ("12x", "table"),
        ("1x2x3x4", "table"),
        ("ax12", "rows"),
        ("12xnan", "dim"),
        ("1.5x3", "rows"),
        ("0x8", "rows"),
        ("-5x8", "rows"),
        ("5x0", "dim"),
        ("5x8x0", "values"),
        ("5x8x6", "values"),
        ("9007199254740993x8", "rows"),
        ("9" * 50 + "x8", "rows"),
        ("9" * 5000 + "x8", "rows"),
    ],
)
def test_a_table_that_cannot_be_is_named(text, named):
    with pytest.raises(ValueError, match=named):
        parse_table(text)


@pytest.mark.parametrize("rows", [0, -1, 1.5, float("nan"), "many", True])
def test_rows_are_whole_and_positive(rows):
    with pytest.raises(ValueError, match="rows"):
        TableShape("", rows, 8)


def test_tables_from_a_file(tmp_path):
    path = tmp_path / "tables.json"
    path.write_text(json.dumps([{"rows": 10, "dim": 2}, {"rows": 20, "dim": 3, "values": 2, "name": "b"}]))
    assert read_tables(path) == (TableShape("", 10, 2), TableShape("b", 20, 3, 2))
    for wrong in (
        "{",
        "{}",
        "[1]",
        "[" * 100_000,
        '[{"rows": 1}]',
        '[{"rows": 1, "dim": 2, "size": 3}]',
        '[{"rows": 1, "dim": 2, "name": 3}]',
    ):
        path.write_text(wrong)
        with pytest.raises(ValueError, match="tables"):
            read_tables(path)
    for wrong in ('[{"rows": 1e30, "dim": 2}]', '[{"rows": NaN, "dim": 2}]', '[{"rows": "1", "dim": 2}]'):
        path.write_text(wrong)
        with pytest.raises(ValueError, match="rows"):
            read_tables(path)
    for no_file in ("/dev/zero", tmp_path):
        with pytest.raises(ValueError, match=r"tables: .* is not a regular file"):
            read_tables(no_file)
    with pytest.raises(FileNotFoundError):
        read_tables(tmp_path / "none.json")


def test_tables_without_a_name_are_numbered():
    named = check_tables([TableShape("", 10, 2), TableShape("b", 10, 2), TableShape("", 10, 2)])
    assert [table.name for table in named] == ["table-1", "b", "table-3"]
