"""How numeric columns are brought to the size that a network reads: fixed rules, never statistics of the data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

LOG = "log"
"""The word for the rule of every column without bounds: sign(x) log(1 + |x|)."""


@dataclass(frozen=True)
class Scale:
    """Public bounds of a column: low becomes -1, high becomes 1, what lies outside is moved to them.

    The bounds must not come from the private data: a minimum or a mean of it would reveal an example.
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        if not (self.low < self.high and math.isfinite(self.high - self.low)):
            raise ValueError(f"scale must be two finite numbers LOW:HIGH, LOW below HIGH, got {self}")

    def __str__(self) -> str:
        return f"{self.low:g}:{self.high:g}"

    @classmethod
    def parse(cls, text: str) -> Scale | None:
        """From `LOW:HIGH`; None for the word `log`, the rule of columns without bounds."""
        if text.strip() == LOG:
            return None
        low, _, high = text.partition(":")
        try:
            bounds = float(low), float(high)
        except ValueError:
            raise ValueError(f"scale must be LOW:HIGH or {LOG}, got {text!r}") from None
        return cls(*bounds)

    def transform(self, value: pl.Expr) -> pl.Expr:
        """Return x moved to [-1, 1] in 32 bits, and 0 where x is missing or not a finite number."""
        number = value.cast(pl.Float64, strict=False)
        centre, half = (self.low + self.high) / 2, (self.high - self.low) / 2
        scaled = ((number - centre) / half).clip(-1.0, 1.0)
        return pl.when(number.is_finite()).then(scaled).otherwise(0.0).cast(pl.Float32)


def scales_in_words(scales: Mapping[str, Scale]) -> str:
    """The rules of the columns with bounds, for a schema."""
    return "; ".join(f"{name}: {scale} to -1:1, 0 where missing" for name, scale in scales.items())
