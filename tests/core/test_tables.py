from __future__ import annotations

import pytest

from sparsedp.core.tables import TableShape, table_scales


def test_a_table_knows_its_size() -> None:
    assert TableShape("items", 10, 4).size == 40
    assert TableShape("items", 10, 4).values == 1


@pytest.mark.parametrize(
    ("shape", "named"),
    [
        (("items", 0, 4), "rows of table 'items'"),
        (("items", 10, -1), "dim of table 'items'"),
        (("", 10, 2.5), "dim"),
        (("items", 3, 4, 4), "values must be at most rows"),
    ],
)
def test_what_is_no_table_is_refused_by_name(shape: tuple, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        TableShape(*shape)


def test_tables_have_one_scale_or_one_each() -> None:
    assert table_scales(2, 3) == [2.0, 2.0, 2.0]
    assert table_scales([1.0, 2.0], 2) == [1.0, 2.0]
    with pytest.raises(
        ValueError, match="table_scale must be one number, or one for each of 2 tables, got 1"
    ):
        table_scales([1.0], 2)
    for wrong in (0.0, -1.0, 1e-300, 1e300, "ab", None, [1.0, None], [1.0, [2.0]]):
        with pytest.raises(ValueError, match="table_scale must "):
            table_scales(wrong, 2)  # type: ignore[arg-type]
