from __future__ import annotations

import polars as pl

from experiments.common.text import cells, markdown


def test_markdown() -> None:
    text = markdown(pl.DataFrame({"a": ["x", "y"], "b": [1234.5, None], "c": [0.70512, 1.0]}))
    assert text.splitlines() == [
        "| a | b | c |",
        "|---|---|---|",
        "| x | 1,234 | 0.7051 |",
        "| y |  | 1 |",
    ]


def test_cells_are_those_of_the_markdown_table() -> None:
    assert cells(pl.DataFrame({"a": [1234567, None], "b": [0.12345, 1e6]})) == [
        ["1,234,567", "0.1235"],
        ["", "1,000,000"],
    ]
