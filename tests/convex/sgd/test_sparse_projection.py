from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from support.spies import spy

from sparsedp.convex.sgd import sparse_projection
from sparsedp.convex.sgd.sparse_projection import project_noisy
from sparsedp.core.counts import SparseCounts
from sparsedp.mechanisms import gaussian, project_l1_ball
from sparsedp.randomness import NoiseSource, noise_lattice

FALSE_ALARM = 1e-9
VECTOR = SparseCounts(np.array([1, 4, 30]), np.array([0.6, -0.5, 0.4]), 60)


def _statistics(answers: list[np.ndarray]) -> list[np.ndarray]:
    stacked = np.array(answers)
    return [
        np.count_nonzero(stacked, axis=1).astype(float),
        stacked[:, 1],
        np.abs(stacked[:, 5:29]).sum(axis=1),
        np.linalg.norm(stacked, axis=1),
    ]


def _sparse_runs(std: float, radius: float, runs: int, seed: int) -> list[np.ndarray]:
    stream = NoiseSource(seed).noise
    return [project_noisy(VECTOR, std=std, radius=radius, stream=stream).dense() for _ in range(runs)]


def _dense_runs(std: float, radius: float, runs: int, seed: int) -> list[np.ndarray]:
    stream, x = NoiseSource(seed).noise, VECTOR.dense()
    return [project_l1_ball(gaussian(x, std=std, stream=stream), radius) for _ in range(runs)]


@pytest.mark.parametrize(("std", "radius"), [(0.3, 1.0), (0.02, 1.2), (0.1, 3.0), (1.0, 0.1)])
def test_same_law_as_the_dense_mechanism(std: float, radius: float) -> None:
    """Kolmogorov-Smirnov on four statistics; each alarm has probability below 1e-9 when the laws agree."""
    ours = _statistics(_sparse_runs(std, radius, 3000, seed=1))
    dense = _statistics(_dense_runs(std, radius, 3000, seed=2))
    for a, b in zip(ours, dense, strict=True):
        assert stats.ks_2samp(a, b, method="asymp").pvalue > FALSE_ALARM


def test_shells_together_have_the_law_of_the_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """A first shell far out, so that many follow: what none of them has hit lies within the last edge."""
    monkeypatch.setattr(
        sparse_projection, "_first_edge", lambda size, std_cells, radius: round(5 * std_cells)
    )
    shells = spy(monkeypatch, sparse_projection, "_hits")
    coins = spy(monkeypatch, sparse_projection, "bernoulli_positions")
    noise = spy(monkeypatch, sparse_projection, "_shell")
    project_noisy(VECTOR, std=0.3, radius=5.0, stream=NoiseSource(7).noise)
    assert len(shells) >= 4
    inside = 1.0
    for shell, coin, drawn in zip(shells, coins, noise, strict=False):
        assert shell["std_cells"] == 0.3 / noise_lattice(0.3)
        inside *= 1.0 - coin["probability"]
        beyond = 2.0 * stats.norm.sf((shell["inner"] - 0.5) / shell["std_cells"])
        assert 1.0 - inside == pytest.approx(beyond, rel=1e-6, abs=1e-12)
        magnitudes = np.abs(drawn["returned"])
        assert np.all(magnitudes >= shell["inner"])
        assert shell["outer"] is None or np.all(magnitudes < shell["outer"])


def test_a_wrong_scale_is_noticed() -> None:
    wrong = _statistics(_sparse_runs(0.3 * 1.15, 1.0, 3000, seed=1))
    dense = _statistics(_dense_runs(0.3, 1.0, 3000, seed=2))
    assert (
        min(stats.ks_2samp(a, b, method="asymp").pvalue for a, b in zip(wrong, dense, strict=True))
        < FALSE_ALARM
    )


def test_noise_of_untouched_coordinates_is_not_forgotten() -> None:
    """With a ball that holds everything nothing is thresholded: all coordinates carry noise of the right scale."""
    stream = NoiseSource(3).noise
    empty = SparseCounts(np.empty(0, dtype=np.int64), np.empty(0), 20_000)
    x = project_noisy(empty, std=0.5, radius=1e9, stream=stream).dense()
    assert stats.kstest(x / 0.5, "norm").pvalue > FALSE_ALARM
    square = float(x @ x)
    assert FALSE_ALARM < stats.chi2.cdf(square / 0.5**2, x.size) < 1 - FALSE_ALARM
    assert stats.chi2.cdf(square / 0.53**2, x.size) < FALSE_ALARM


@settings(max_examples=60, deadline=None)
@given(
    size=st.integers(1, 400),
    std=st.sampled_from([1e-6, 0.01, 0.3, 5.0]),
    radius=st.sampled_from([1e-3, 1.0, 50.0]),
    seed=st.integers(0, 10**6),
)
def test_answers_lie_in_the_ball(size: int, std: float, radius: float, seed: int) -> None:
    source = NoiseSource(seed)
    ids = np.sort(source.sampling.permutation(size)[: min(size, 7)])
    vector = SparseCounts(ids, source.sampling.normal(ids.size), size)
    answer = project_noisy(vector, std=std, radius=radius, stream=source.noise)
    assert np.all(np.diff(answer.ids) > 0)
    assert np.abs(answer.values).sum() <= radius * (1 + 1e-9)
    if std == 1e-6:
        exact = project_l1_ball(vector.dense(), radius)
        assert np.abs(answer.dense() - exact).max() < 20 * std


def test_no_projection_leaves_points_of_the_lattice() -> None:
    std = 0.05
    answer = project_noisy(VECTOR, std=std, radius=100.0, stream=NoiseSource(5).noise)
    assert answer.ids.size == VECTOR.size
    cells = answer.values / noise_lattice(std)
    assert np.all(cells == np.rint(cells))


def test_a_billion_coordinates_cost_what_survives() -> None:
    vector = SparseCounts(VECTOR.ids, VECTOR.values, 10**9)
    tracemalloc.start()
    answer = project_noisy(vector, std=0.02, radius=2.0, stream=NoiseSource(6).noise)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2_000_000
    assert 0 < answer.ids.size < 2000
    assert np.abs(answer.values).sum() == pytest.approx(2.0)


def test_bad_input() -> None:
    stream = NoiseSource(0).noise
    with pytest.raises(ValueError, match="std must"):
        project_noisy(VECTOR, std=0.0, radius=1.0, stream=stream)
    with pytest.raises(ValueError, match="radius must"):
        project_noisy(VECTOR, std=1.0, radius=math.inf, stream=stream)
    broken = SparseCounts(np.array([0]), np.array([math.nan]), 3)
    with pytest.raises(ValueError, match="values must be finite"):
        project_noisy(broken, std=1.0, radius=1.0, stream=stream)
    with pytest.raises(ValueError, match="ids must be sorted"):
        project_noisy(SparseCounts(np.array([3]), np.array([1.0]), 3), std=1.0, radius=1.0, stream=stream)
