"""Options that name columns: one value a name."""

from __future__ import annotations

import pytest

from sparsedp.cli.column_options import name_and_number, names_in, once, scales_in, table_rows_in
from sparsedp.data.scales import Scale


def test_names_come_repeated_or_with_commas() -> None:
    assert names_in(["a, b", "c", ","]) == ("a", "b", "c")
    assert names_in(None) == ()


def test_a_name_may_have_the_sign_that_ends_it() -> None:
    assert name_and_number("hash", "a=b = 10") == ("a=b", 10)


def test_a_name_that_is_given_twice_loses_nothing() -> None:
    assert once("hash", [("a", 1), ("b", 1)]) == {"a": 1, "b": 1}
    with pytest.raises(ValueError, match=r"^hash: b is given twice"):
        once("hash", [("a", 1), ("b", 2), ("b", 3)])
    with pytest.raises(ValueError, match=r"^scale: x is given twice"):
        scales_in(["x=0:1", " x =log"])
    assert scales_in(["x=0:1", "y=log"]) == {"x": Scale(0, 1)}


def test_rows_of_tables() -> None:
    assert table_rows_in("5", 3) == (5, 5, 5)
    with pytest.raises(ValueError, match="one number or 3"):
        table_rows_in("5,6", 3)
