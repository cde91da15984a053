"""Checks of arguments: each returns a plain number, or raises a `ValueError` that names the argument."""

from __future__ import annotations

import math
import operator
from typing import SupportsFloat, SupportsIndex

LARGEST_COUNT = 2**53
"""Whole numbers up to here are exact as floats."""

LARGEST_SCALE = 1e100
"""Products of a few numbers up to here fit a float."""

MOST_RELEASES = 10**12
"""How many releases the loss distributions can tell from more; nobody trains for so many steps."""


def check_number(name: str, value: SupportsFloat | SupportsIndex) -> float:
    """A real number; NaN and anything that is not a number are refused, infinities pass."""
    try:
        number = float(value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} must be a number, got {value!r}") from error
    except OverflowError as error:
        raise ValueError(f"{name} must be a number that fits a float") from error
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


def check_scale(name: str, value: SupportsFloat | SupportsIndex) -> float:
    """A number above zero that is neither so large nor so small that its square does not fit a float."""
    number = check_positive(name, value)
    if not 1 / LARGEST_SCALE <= number <= LARGEST_SCALE:
        raise ValueError(
            f"{name} must lie between {1 / LARGEST_SCALE:g} and {LARGEST_SCALE:g}, got {number:g}"
        )
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


def check_count(
    name: str, value: SupportsIndex | float, minimum: int = 1, maximum: int = LARGEST_COUNT
) -> int:
    """A whole number from `minimum` to `maximum`; 3.0 passes as 3, 3.5 and True do not."""
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
        raise ValueError(f"{name} must be at least {minimum}, got {_shown(count)}")
    if count > maximum:
        raise ValueError(f"{name} must be at most {maximum}, got {_shown(count)}")
    return count


def check_releases(name: str, value: SupportsIndex | float, minimum: int = 0) -> int:
    """How often something is released: a whole number of at most `MOST_RELEASES`."""
    return check_count(name, value, minimum, MOST_RELEASES)


def _shown(count: int) -> str:
    return str(count) if abs(count) < 10**18 else f"about 10^{int(math.log10(abs(count)))}"
