"""The study of AdaFEST with memory: its grids."""

from __future__ import annotations

from experiments.fest.memory import QUICK, SIZES, grids


def test_every_algorithm_has_its_sizes_and_the_same_periods_and_seeds() -> None:
    found = grids(QUICK, quick=False)
    assert [grid["algorithm"] for grid in found] == 2 * [
        [name] for name in QUICK.algorithms for _ in SIZES[name]
    ]
    assert {(*grid["seed"], *grid["period"], *grid["train_periods"]) for grid in found} == {(0, 1, 1, 3)}
    assert [grid["false_positives"] for grid in found if grid["algorithm"] == ["adafest-memory"]][1] == [20.0]
