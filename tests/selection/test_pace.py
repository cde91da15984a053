"""How often rows are updated, and which are due."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparsedp.selection.pace import UpdateSchedule, periods_by_count

COUNTS = st.lists(st.floats(0.1, 1e6), min_size=1, max_size=60).map(np.array)


@given(COUNTS, st.integers(1, 60), st.integers(1, 300))
def test_as_many_rows_a_step_as_asked(counts: np.ndarray, rows: int, longest: int) -> None:
    """At most ``rows`` a step, or the fewest that the longest period allows; frequent rows never wait longer."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        periods = periods_by_count(counts, rows, longest)
    assert periods.min() >= 1
    assert periods.max() <= longest
    assert (1 / periods).sum() <= max(rows, counts.size / longest) * (1 + 1e-9)
    assert (np.diff(periods[np.argsort(counts)]) <= 0).all()


def test_too_few_rows_a_step_to_update_all_are_warned_about() -> None:
    with pytest.warns(
        UserWarning, match="1,000 rows take turns, 10 in a step .* more than 9: frequent rows wait"
    ):
        assert (periods_by_count(np.geomspace(1.0, 4096.0, 1000), 9, 100) >= 90).all()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        periods_by_count(np.geomspace(1.0, 4096.0, 1000), 10, 100)


def test_all_rows_in_every_step_where_there_is_room() -> None:
    assert periods_by_count(np.array([1.0, 50.0, 1e5]), 3, 100).tolist() == [1, 1, 1]
    assert periods_by_count(np.empty(0), 3, 100).size == 0


def test_the_budget_is_used() -> None:
    """Of a thousand rows about two hundred are due in a step; a row that is read four times as often waits half as long."""
    counts = np.geomspace(1.0, 4096.0, 1000)
    periods = periods_by_count(counts, 200, 1000)
    assert 180 < (1 / periods).sum() <= 200
    rare, frequent = periods[0], periods[np.searchsorted(counts, 4.0)]
    assert 1.6 < rare / frequent < 2.5


@given(st.lists(st.integers(1, 9), min_size=1, max_size=30), st.integers(0, 50))
def test_a_row_is_due_once_in_each_of_its_periods(periods: list[int], start: int) -> None:
    rows = np.arange(len(periods)) * 3
    schedule = UpdateSchedule([rows], [np.array(periods)])
    window = int(np.lcm.reduce(periods))
    seen = np.zeros(len(periods), dtype=int)
    for step in range(start, start + window):
        (places,) = schedule.due(step)
        assert (np.diff(places) > 0).all()
        seen[places] += 1
    assert seen.tolist() == [window // period for period in periods]


@pytest.mark.parametrize("step", [1, 2, 7])
def test_rows_of_one_period_are_spread_evenly(step: int) -> None:
    schedule = UpdateSchedule([np.arange(100)], [np.full(100, 10)])
    assert schedule.due(step)[0].size == 10
