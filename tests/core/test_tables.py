from __future__ import annotations

import pytest

from sparsedp.core.tables import TableShape


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
