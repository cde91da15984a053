"""What options of `sparsedp prepare` say of columns: names, numbers and bounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from sparsedp.data.scales import Scale

Value = TypeVar("Value")


def names_in(texts: Sequence[str] | None) -> tuple[str, ...]:
    """The names of an option that takes several, repeated or with commas."""
    return tuple(name.strip() for text in texts or () for name in text.split(",") if name.strip())


def scales_in(texts: Sequence[str] | None) -> dict[str, Scale]:
    """The bounds of the numeric columns that have any."""
    from sparsedp.data.scales import Scale

    bounds = []
    for text in texts or ():
        name, _, written = text.partition("=")
        if not name or not written:
            raise ValueError(f"scale must be NAME=LOW:HIGH or NAME=log, got {text!r}")
        bounds.append((name.strip(), Scale.parse(written)))
    return {name: scale for name, scale in once("scale", bounds).items() if scale is not None}


def once(option: str, pairs: Sequence[tuple[str, Value]]) -> dict[str, Value]:
    """The values of an option by name; a name that is given twice would lose one of them."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{option}: {twice} is given twice")
    return found


def name_and_number(option: str, text: str) -> tuple[str, int]:
    """The two sides of NAME=BUCKETS."""
    name, _, number = text.rpartition("=")
    if not name or not number.strip().isdecimal():
        raise ValueError(f"{option} must be NAME=BUCKETS, got {text!r}")
    return name.strip(), int(number)


def table_rows_in(text: str, features: int) -> tuple[int, ...]:
    """The rows of each table: one number for all, or one for each."""
    try:
        sizes = tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise ValueError(f"buckets must be integers, got {text!r}") from error
    if len(sizes) == 1:
        return sizes * features
    if len(sizes) != features:
        raise ValueError(f"buckets must be one number or {features}, got {len(sizes)}")
    return sizes
