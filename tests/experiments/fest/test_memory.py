"""The study of AdaFEST with memory: its grids."""

from __future__ import annotations

from experiments.fest.memory import DATA_SETS, QUICK, _grids


def test_every_algorithm_has_the_same_periods_and_seeds() -> None:
    for each in (*DATA_SETS, QUICK):
        by_epsilon: dict[float, set[tuple[int, ...]]] = {}
        for grid in _grids(each, quick=False):
            (epsilon,) = grid["epsilon"]
            shared = (*grid["seed"], *grid["period"], *grid["train_periods"])
            by_epsilon.setdefault(epsilon, set()).add(shared)
        assert all(len(shared) == 1 for shared in by_epsilon.values())
