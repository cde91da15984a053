"""A field of another type than its class says is refused, at any depth."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from sparsedp.core.typed_fields import check_fields


@dataclass(frozen=True)
class Inner:
    number: int


@dataclass(frozen=True)
class Outer:
    name: str
    share: float
    inner: Inner
    flag: bool = False
    maybe: str | None = None
    several: tuple[Inner, ...] = ()
    pair: tuple[int, str] = (1, "a")
    by_name: dict[str, float] = field(default_factory=dict)
    numbers: list[float] | None = None
    anything: dict[str, Any] = field(default_factory=dict)


GOOD = Outer("a", 1, Inner(2), True, "b", (Inner(3),), (4, "c"), {"d": 5.0}, [6, 7.5], {"e": object()})


def test_right_types_pass() -> None:
    check_fields(GOOD)
    check_fields(Outer("a", 0.5, Inner(2)))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("name", 1),
        ("name", None),
        ("share", "1"),
        ("share", True),
        ("inner", {"number": 1}),
        ("inner", Inner("1")),  # type: ignore[arg-type]
        ("flag", 1),
        ("maybe", 3),
        ("several", [Inner(3)]),
        ("several", (Inner(True),)),
        ("pair", (4, "c", 5)),
        ("pair", ("c", 4)),
        ("by_name", {1: 5.0}),
        ("by_name", {"d": "5"}),
        ("numbers", [None]),
        ("numbers", 7),
        ("anything", [1]),
    ],
)
def test_other_types_are_refused(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match="cannot be"):
        check_fields(replace(GOOD, **{name: value}))
