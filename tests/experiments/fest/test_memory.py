"""The study of AdaFEST with memory: plain AdaFEST at the same gradient size, and its grids."""

from __future__ import annotations

import pytest
from support.sweep_results import frame, line

from experiments.fest.memory import DATA_SETS, QUICK, _grids, ahead_of_plain

REMEMBERED = {"memory_false_positives": 500.0}
RUNS = frame(
    line("adafest", 0.60, 1000.0, threshold=50.0, memory_false_positives=None),
    line("adafest", 0.62, 10.0, threshold=10.0, memory_false_positives=None),
    line("adafest-memory", 0.617, 100.0, **REMEMBERED),
    line("adafest-memory", 0.619, 100.0, seed=1, **REMEMBERED),
    line("adafest-memory", 0.59, 5000.0, noise_ratio=2.0, **REMEMBERED),
    line("fest", 0.9, 100.0, memory_false_positives=None),
)


def test_plain_adafest_is_interpolated_in_the_logarithm_of_the_size() -> None:
    by_ratio = {found["noise ratio"]: found for found in ahead_of_plain(RUNS).iter_rows(named=True)}
    assert by_ratio[5.0]["plain AdaFEST there"] == pytest.approx(0.61)
    assert by_ratio[5.0]["ahead by"] == pytest.approx(0.008)
    assert by_ratio[2.0]["plain AdaFEST there"] == pytest.approx(0.60)  # the nearest setting
    assert by_ratio[2.0]["ahead by"] == pytest.approx(-0.01)


def test_every_algorithm_has_the_same_batches_and_seeds() -> None:
    for each in (*DATA_SETS, QUICK):
        by_epsilon: dict[float, set[tuple[int, ...]]] = {}
        for grid in _grids(each, quick=False):
            (epsilon,) = grid["epsilon"]
            shared = (*grid["expected_batch_size"], *grid["seed"], *grid.get("period", ()))
            by_epsilon.setdefault(epsilon, set()).add(shared)
        assert all(len(shared) == 1 for shared in by_epsilon.values())
