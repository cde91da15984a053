from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsedp.convex.sgd.iterate import Iterate
from sparsedp.core.counts import SparseCounts


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), radius=st.sampled_from([0.5, 2.0, math.inf]), steps=st.integers(0, 40))
def test_follows_projected_sgd_written_out(seed: int, radius: float, steps: int) -> None:
    rng = np.random.default_rng(seed)
    start = rng.standard_normal(12)
    plain = start * min(1.0, radius / np.linalg.norm(start))
    visited = [plain]
    iterate = Iterate(start.copy(), radius)
    for _ in range(steps):
        ids = np.sort(rng.choice(12, size=3, replace=False))
        values = rng.standard_normal(3)
        iterate.move(SparseCounts(ids, values, 12), -0.3)
        moved = visited[-1].copy()
        moved[ids] -= 0.3 * values
        visited.append(moved * min(1.0, radius / np.linalg.norm(moved)))
    assert np.allclose(iterate.x, visited[-1])
    assert np.allclose(iterate.average(), np.mean(visited, axis=0))


def test_single_precision_keeps_its_average() -> None:
    rng = np.random.default_rng(1)
    iterate, total = Iterate(np.zeros(5, dtype=np.float32), math.inf), np.zeros(5)
    for _ in range(200):
        iterate.move(SparseCounts(np.array([1, 3]), rng.standard_normal(2) * 1e-3, 5), 1.0)
        total += iterate.x
    assert iterate.x.dtype == np.float32
    assert iterate.average() == pytest.approx(total / 201, abs=1e-9)
