"""Upper bounds for people: what is printed is never below the value."""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, Context, Decimal

NOISE = 1e-9
"""The relative error of float64 arithmetic that is not worth a digit: 0.1 + 0.2 is printed as 0.3."""


def rounded_up(value: float, digits: int) -> str:
    """A spent or claimed epsilon or delta with so many significant digits, the last one rounded up.

    Lower bounds (an audit's) are not for this function.
    """
    nearest = f"{value:.{digits}g}"
    if not math.isfinite(value) or float(nearest) >= value - NOISE * abs(value):
        return nearest
    above = Context(prec=digits, rounding=ROUND_CEILING).create_decimal(Decimal(value))
    return f"{float(above):.{digits}g}"
