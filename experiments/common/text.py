"""Frames as text: Markdown tables, and cells for HTML tables."""

from __future__ import annotations

from typing import Any

import polars as pl


def markdown(frame: pl.DataFrame) -> str:
    """The frame as a Markdown table; missing values stay empty."""
    lines = ["| " + " | ".join(frame.columns) + " |", "|" + "---|" * frame.width]
    lines += ["| " + " | ".join(_cell(value) for value in row) + " |" for row in frame.iter_rows()]
    return "\n".join(lines) + "\n"


def cells(frame: pl.DataFrame) -> list[list[str]]:
    """The frame's values as text, as ``page.table`` wants them."""
    return [[_cell(value) for value in row] for row in frame.iter_rows()]


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
