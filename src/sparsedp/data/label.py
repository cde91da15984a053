"""What is predicted: a column of zeros and ones, or a comparison such as `delay>15`."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import polars as pl

_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
}
_FORM = re.compile(r"^\s*(?P<column>[^<>=!]+?)\s*((?P<sign>>=|<=|==|!=|>|<)\s*(?P<value>[^<>=!]+?)\s*)?$")


@dataclass(frozen=True)
class Label:
    """`column` alone, or `column sign value`, the value being a number, or a text for == and !=."""

    column: str
    sign: str | None = None
    value: str | None = None

    @classmethod
    def parse(cls, text: str) -> Label:
        """Read the form that the command line takes."""
        match = _FORM.match(text)
        if match is None:
            raise ValueError(f"label must be a column or a comparison such as 'delay>15', got {text!r}")
        label = cls(match["column"], match["sign"], match["value"])
        if label.sign in (">", "<", ">=", "<=") and label.number is None:
            raise ValueError(f"label compares {label.column} with {label.value!r}, which is not a number")
        return label

    @property
    def number(self) -> float | None:
        """The value as a number, if it is one."""
        try:
            number = float(self.value) if self.value is not None else math.nan
        except ValueError:
            return None
        return number if math.isfinite(number) else None

    @property
    def reads_numbers(self) -> bool:
        """Whether the column must hold numbers: only a text is compared with anything else."""
        return self.sign is None or self.number is not None

    @property
    def rule(self) -> str:
        """How the label comes about, in words."""
        return f"{self.column} {self.sign} {self.value}" if self.sign else f"{self.column}, 0 or 1"

    @property
    def expression(self) -> pl.Expr:
        """Return 0, 1, or null where the column has no usable value."""
        column = pl.col(self.column)
        number = column.cast(pl.Float64, strict=False)
        if self.sign is None:
            return pl.when(number.is_in([0.0, 1.0])).then(number).otherwise(None).cast(pl.Float32)
        compare = _COMPARISONS[self.sign]
        if self.number is not None:
            usable = pl.when(number.is_finite()).then(number)
            answer = compare(usable, self.number)
        else:
            answer = compare(column.cast(pl.String), self.value)
        return pl.Expr.cast(answer, pl.Float32)
