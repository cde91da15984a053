from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import sparse

from sparsedp.accounting import analytic_gaussian_sigma
from sparsedp.convex.theory import hard_instances as hard
from sparsedp.convex.theory import rates
from sparsedp.randomness import NoiseSource, Stream


def _stream(seed: int) -> Stream:
    return NoiseSource(seed).sampling


@pytest.mark.parametrize(("columns", "s", "count"), [(40, 4, 60), (64, 9, 40), (12, 1, 12), (30, 3, 50)])
def test_packing_is_far_apart(columns: int, s: int, count: int) -> None:
    vectors = hard.packing(columns, s, count, _stream(1)).toarray()
    assert vectors.shape == (count, columns)
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1.0)
    assert set(np.count_nonzero(vectors, axis=1)) == {s}
    distances = np.linalg.norm(vectors[:, None] - vectors[None], axis=2)[~np.eye(count, dtype=bool)]
    assert distances.min() >= hard.packing_distance(s) - 1e-12
    assert hard.packing_distance(s) >= 1 / math.sqrt(2)


def test_packing_size_is_no_more_than_there_are() -> None:
    assert hard.log_packing_size(20, 1) == pytest.approx(math.log(20))
    assert hard.log_packing_size(20, 3) == pytest.approx(math.log(math.comb(20, 3)))
    # Lemma A.1 promises (d/s - 1/2)^(s/2); counting exactly is at least as good.
    for columns, s in ((50, 5), (400, 16), (1000, 40)):
        assert hard.log_packing_size(columns, s) >= s / 2 * math.log(columns / s - 0.5)
    with pytest.raises(ValueError, match="count must be at most"):
        hard.packing(10, 1, 11, _stream(0))


@pytest.mark.parametrize("delta", [0.0, 1e-6])
@pytest.mark.parametrize(("n", "d", "s"), [(50, 400, 4), (2000, 400, 8), (7, 5000, 16)])
def test_instances_satisfy_the_assumption(n: int, d: int, s: int, delta: float) -> None:
    instance = hard.hard_mean_instance(n, d, s, 0.5, delta, l2_bound=3.0, stream=_stream(2))
    assert instance.data.shape == (n, d)
    norms = sparse.linalg.norm(instance.data, axis=1)
    assert np.all(np.isclose(norms, 3.0) | (norms == 0.0))
    assert np.diff(instance.data.indptr).max() == s
    design = instance.design
    assert design.blocks * design.rows <= n
    assert design.blocks * design.columns <= d
    assert 0.0 < design.floor <= 3.0


def test_floor_scales_like_the_theorem() -> None:
    d, s, epsilon = 2**20, 4, 0.1
    n = 2 ** np.arange(10, 17)
    for delta, regime in ((0.0, rates.HIGH_DIMENSIONAL), (1e-12, rates.HIGH_DIMENSIONAL)):
        floors = [hard.hardest_design(int(each), d, s, epsilon, delta).floor for each in n]
        theory = [rates.mean_lower(int(each), d, s, epsilon, delta) for each in n]
        assert {each.regime for each in theory} == {regime}
        slope = rates.log_log_slope(n, [each.value for each in theory])
        assert rates.log_log_slope(n, floors) == pytest.approx(slope, abs=0.1)
    n = 2 ** np.arange(24, 30)
    for delta in (0.0, 1e-12):
        floors = [hard.hardest_design(int(each), 4096, s, epsilon, delta).floor for each in n]
        assert rates.log_log_slope(n, floors) == pytest.approx(-1.0, abs=0.01)


def test_floor_never_passes_the_norm_of_the_mean() -> None:
    """Answering zero is private, so a floor above the norm of the hard mean would be a wrong proof."""
    for n, delta in ((1, 0.0), (3, 1e-6), (40, 0.0), (40, 1e-6), (1000, 0.0), (1000, 1e-6)):
        squares = []
        for seed in range(20):
            instance = hard.hard_mean_instance(n, 2000, 6, 0.7, delta, stream=_stream(seed))
            squares.append(float((instance.data.mean(axis=0) ** 2).sum()))
        assert instance.design.floor <= math.sqrt(np.mean(squares))


def test_private_estimators_stay_above_and_leaky_ones_fall_below() -> None:
    """The floor as an audit of utility: too good to be private is not private."""
    n, d, s, epsilon, delta = 2000, 4096, 64, 0.5, 1e-6
    design = hard.hardest_design(n, d, s, epsilon, delta)
    std = 2.0 / n * analytic_gaussian_sigma(epsilon, delta)
    honest = math.sqrt(d) * std
    assert honest > design.floor
    leaky = math.sqrt(d) * 2.0 / n * analytic_gaussian_sigma(200 * epsilon, delta)
    assert leaky < design.floor


def test_fingerprinting_identity() -> None:
    """a^2 = f^2 - (1 + 2/n) A + (1 + 2/n)/3 for any answer, here by simulation of three of them."""
    rng, rows, columns = np.random.default_rng(3), 4, 400_000
    p = rng.uniform(-1, 1, columns)
    x = np.where(rng.uniform(size=(rows, columns)) < (1 + p) / 2, 1.0, -1.0)
    mean = x.mean(axis=0)
    for answer in (mean, 0.3 * mean, np.sign(x[0] + 0.1), np.zeros(columns)):
        tracing = (answer * (x - p).sum(axis=0)).mean()
        factor = 1 + 2 / rows
        right = (answer**2).mean() - factor * tracing + factor / 3
        assert ((answer - mean) ** 2).mean() == pytest.approx(right, abs=0.02)


def test_tracing_finds_members_of_an_exact_mean_only() -> None:
    """Scores of members pass those of strangers by many standard errors without noise, and not with it."""
    rows, s, stream = 40, 4000, _stream(4)
    block = hard.fingerprinting_block(rows, s, stream)
    strangers = np.where(stream.uniform((rows, s)) < (1 + block.column_means) / 2, 1.0, -1.0) / math.sqrt(s)
    exact = block.data.mean(axis=0)
    private = exact + 2.0 / rows * analytic_gaussian_sigma(0.5, 1e-4) * stream.normal(s)

    def advantage(answer: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
        inside = hard.tracing_scores(answer, block.data, block.column_means)
        outside = hard.tracing_scores(answer, strangers, block.column_means)
        return float((inside.mean() - outside.mean()) / math.sqrt((inside.var() + outside.var()) / rows))

    assert advantage(exact) > 10.0
    assert abs(advantage(private)) < 6.0


def test_fingerprinting_floor_vanishes_for_weak_privacy() -> None:
    assert hard.fingerprinting_floor(2, 64, 10.0, 1e-6) == 0.0
    assert hard.fingerprinting_floor(1, 4096, 0.01, 0.0) == pytest.approx(1.0, abs=1e-3)
    assert hard.packing_floor(10, 100, 1, 0.01) > 0.5
    assert hard.packing_floor(10**6, 100, 1, 1.0) == 0.0


def test_bad_input() -> None:
    for arguments, message in (
        ((0, 10, 1, 1.0), "n must"),
        ((10, 10, 6, 1.0), "s must be at most d / 2"),
        ((10, 10, 1, math.inf), "epsilon must"),
        ((10, 10, 1, 1.0, 1.0), "delta must"),
    ):
        with pytest.raises(ValueError, match=message):
            hard.hardest_design(*arguments)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least one block"):
        hard.block_diagonal([], n=1, d=1)
    with pytest.raises(ValueError, match="must fit"):
        hard.block_diagonal([sparse.csr_array(np.ones((2, 2)))], n=1, d=2)
