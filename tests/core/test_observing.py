from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from sparsedp.core.observing import draw, note_charge, observed_by


class Notes:
    def __init__(self) -> None:
        self.seen: list[Any] = []

    def draw(self, name: str, arguments: Mapping[str, Any], run: Callable[[], Any]) -> Any:
        self.seen.append((name, dict(arguments)))
        return run() + 100

    def charge(self, event: Any) -> None:
        self.seen.append(event)


@draw
def doubled(value: int, by: int = 2) -> int:
    return value * by


@draw
def outer(value: int) -> int:
    return doubled(value) + 1


def test_a_watcher_sees_draws_and_charges_in_order_and_decides() -> None:
    notes = Notes()
    with observed_by(notes):
        note_charge("first")
        assert doubled(3) == 106
        note_charge("second")
    assert [each if isinstance(each, str) else each[1] for each in notes.seen] == [
        "first",
        {"value": 3, "by": 2},
        "second",
    ]


def test_a_draw_within_a_draw_is_its_own_business() -> None:
    notes = Notes()
    with observed_by(notes):
        assert outer(3) == 107
    assert len(notes.seen) == 1


def test_nobody_looks_on_otherwise() -> None:
    notes = Notes()
    with pytest.raises(ZeroDivisionError), observed_by(notes):
        raise ZeroDivisionError
    note_charge("unseen")
    assert outer(3) == 7
    assert not notes.seen
