"""Checks of arguments: each returns a plain number, or raises a `ValueError` that names the argument."""

from __future__ import annotations

import math
import operator
from typing import SupportsFloat, SupportsIndex


def check_number(name: str, value: SupportsFloat | SupportsIndex) -> float:
    """A real number; NaN and anything that is not a number are refused, infinities pass."""
    try:
        number = float(value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} must be a number, got {value!r}") from error
    if math.isnan(number):
        raise ValueError(f"{name} must be a number, got NaN")
    return number


def check_finite(name: str, value: SupportsFloat | SupportsIndex) -> float:
    """A finite number."""
    number = check_number(name, value)
    if math.isinf(number):
        raise ValueError(f"{name} must be finite, got {number}")
    return number


def check_positive(name: str, value: SupportsFloat | SupportsIndex) -> float:
    """A finite number above zero."""
    number = check_finite(name, value)
    if number <= 0:
        raise ValueError(f"{name} must be positive, got {number}")
    return number


def check_non_negative(name: str, value: SupportsFloat | SupportsIndex) -> float:
    """A finite number, zero or above."""
    number = check_finite(name, value)
    if number < 0:
        raise ValueError(f"{name} must not be negative, got {number}")
    return number


def check_epsilon(value: SupportsFloat | SupportsIndex, name: str = "epsilon") -> float:
    """An epsilon that can be aimed at: finite and positive."""
    return check_positive(name, value)


def check_delta(value: SupportsFloat | SupportsIndex, name: str = "delta") -> float:
    """A delta strictly between 0 and 1."""
    number = check_finite(name, value)
    if not 0 < number < 1:
        raise ValueError(f"{name} must lie strictly between 0 and 1, got {number}")
    return number


def check_probability(name: str, value: SupportsFloat | SupportsIndex) -> float:
    """A probability, 0 and 1 included."""
    number = check_finite(name, value)
    if not 0 <= number <= 1:
        raise ValueError(f"{name} must lie between 0 and 1, got {number}")
    return number


def check_rate(name: str, value: SupportsFloat | SupportsIndex) -> float:
    """A sampling rate: above 0, at most 1."""
    number = check_probability(name, value)
    if number == 0:
        raise ValueError(f"{name} must be above 0, got {number}")
    return number


def check_count(name: str, value: SupportsIndex | float, minimum: int = 1) -> int:
    """A whole number of at least `minimum`; 3.0 passes as 3, 3.5 and True do not."""
    if isinstance(value, bool):
        raise ValueError(f"{name} must be a whole number, got {value!r}")
    try:
        if isinstance(value, float) and value.is_integer():
            count = int(value)
        else:
            count = operator.index(value)  # type: ignore[arg-type]
    except TypeError as error:
        raise ValueError(f"{name} must be a whole number, got {value!r}") from error
    if count < minimum:
        raise ValueError(f"{name} must be at least {minimum}, got {count}")
    return count
