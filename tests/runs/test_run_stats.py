from __future__ import annotations

import json

import pytest

from sparsedp.runs.run_stats import RunStats
from sparsedp.training import LastStep


def step(number: int, rows: dict[str, int]) -> LastStep:
    total = sum(rows.values())
    return LastStep(number, total, 2 * total, 10, 4000, rows)


def test_means_over_steps() -> None:
    run_stats = RunStats()
    run_stats.add(step(1, {"a": 3, "b": 7}), 100, 0.5)
    run_stats.add(step(2, {"a": 5, "b": 25}), 60, 0.3)
    assert run_stats.mean_rows == 20
    assert run_stats.mean_gradient_size == 40
    assert run_stats.mean_rows_per_table == {"a": 4, "b": 16}
    assert run_stats.reduction == 100
    assert run_stats.examples_per_second == pytest.approx(200)


def test_without_privacy_there_is_no_gradient_size() -> None:
    run_stats = RunStats()
    assert run_stats.examples_per_second == 0
    run_stats.add(None, 100, 0.5)
    assert (run_stats.mean_rows, run_stats.mean_gradient_size, run_stats.reduction) == (None, None, None)


def test_a_step_without_rows_is_no_division_by_zero() -> None:
    run_stats = RunStats()
    run_stats.add(step(1, {"a": 0}), 0, 0.0)
    assert run_stats.mean_rows == 0
    assert run_stats.reduction is not None
    assert run_stats.reduction > 4000


def test_it_survives_json() -> None:
    run_stats = RunStats()
    run_stats.add(step(1, {"a": 3}), 100, 0.5)
    assert RunStats.from_record(json.loads(json.dumps(run_stats.to_record()))) == run_stats
