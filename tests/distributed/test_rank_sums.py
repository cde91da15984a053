"""Sums of several processes as whole cells of the lattice."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from sparsedp.distributed.rank_sums import in_cells, total_of
from sparsedp.randomness.lattice import lattice_of


@pytest.mark.parametrize("ranks", [1, 2, 7, 64])
@pytest.mark.parametrize("size", [0.0, 1.0, 1e4, 1e9])
def test_one_example_moves_the_total_by_its_sensitivity(ranks: int, size: float) -> None:
    """The worst gradient: in every coordinate it carries the sum of its process just over the edge of a cell.

    Rounded once per process, the totals of two neighbours may differ by the gradient and a cell in each coordinate,
    not by a cell for each process: only one process has the example.
    """
    coordinates, sensitivity = 400, 1.0
    lattice = lattice_of(std=1.0, sensitivity=sensitivity, coordinates=coordinates)
    edges = np.rint(np.random.default_rng(1).normal(size=(ranks, coordinates)) * size / lattice) + 0.5
    sums = edges * lattice * (1 - 2.0**-50)
    gradient = np.full(coordinates, (1 - 2.0**-10) * sensitivity / np.sqrt(coordinates))
    neighbour = sums.copy()
    neighbour[ranks // 2] += gradient
    totals = [
        total_of([in_cells(part, lattice, ranks) for part in each], lattice) for each in (sums, neighbour)
    ]
    moved = np.linalg.norm(totals[1] - totals[0])
    assert moved <= sensitivity
    assert moved > np.linalg.norm(gradient) or size > 1e6, "the worst case, where floats are fine enough"
    for total in totals:
        assert (total == np.rint(total / lattice) * lattice).all()


@pytest.mark.parametrize("cells", [5, 2**31 - 1, 2**31, 2**40, 2**52])
def test_cells_are_added_exactly(cells: int) -> None:
    parts = [in_cells(np.array([each * 2.0**-30]), 2.0**-30, 3) for each in (cells, -cells + 1, -1)]
    assert parts[0].dtype == (np.int32 if cells < 2**31 else np.int64)
    assert total_of(parts, 2.0**-30).tolist() == [0.0]


def test_sums_beyond_all_bounds_do_not_wrap_around() -> None:
    for worst, ranks in itertools.product((1e300, np.inf), (2, 3, 4, 5, 64)):
        parts = [in_cells(np.array([worst, -worst, np.nan]), 2.0**-30, ranks) for _ in range(ranks)]
        total = total_of(parts, 2.0**-30)
        assert total[0] == -total[1] > 2.0**31
        assert total[2] == 0


def test_sums_that_a_second_clipping_sees_are_not_rounded() -> None:
    sums = np.array([0.1, 1e-30])
    assert total_of([in_cells(sums, 0.0, 2)] * 2, 0.5).tolist() == [0.2, 2e-30]
