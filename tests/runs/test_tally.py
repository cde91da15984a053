from __future__ import annotations

import json

import pytest

from sparsedp.runs.tally import Tally
from sparsedp.training import LastStep


def step(number: int, rows: dict[str, int]) -> LastStep:
    total = sum(rows.values())
    return LastStep(number, total, 2 * total, 10, 4000, rows)


def test_means_over_steps() -> None:
    tally = Tally()
    tally.add(step(1, {"a": 3, "b": 7}), 100, 0.5)
    tally.add(step(2, {"a": 5, "b": 25}), 60, 0.3)
    assert tally.mean_rows == 20
    assert tally.mean_gradient_size == 40
    assert tally.mean_rows_per_table == {"a": 4, "b": 16}
    assert tally.reduction == 100
    assert tally.examples_per_second == pytest.approx(200)


def test_without_privacy_there_is_no_gradient_size() -> None:
    tally = Tally()
    assert tally.examples_per_second == 0
    tally.add(None, 100, 0.5)
    assert (tally.mean_rows, tally.mean_gradient_size, tally.reduction) == (None, None, None)


def test_a_step_without_rows_is_no_division_by_zero() -> None:
    tally = Tally()
    tally.add(step(1, {"a": 0}), 0, 0.0)
    assert tally.mean_rows == 0
    assert tally.reduction is not None
    assert tally.reduction > 4000


def test_it_survives_json() -> None:
    tally = Tally()
    tally.add(step(1, {"a": 3}), 100, 0.5)
    assert Tally.from_record(json.loads(json.dumps(tally.to_record()))) == tally
