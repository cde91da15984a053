"""Sums of noisy counts: the law of what passes, against sums of every row; what they hold; states that are none."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from scipy import stats
from scipy.special import ndtr

from sparsedp.core.arrays import F64, I64
from sparsedp.core.counts import SparseCounts
from sparsedp.mechanisms import NoisySums, noisy_sums
from sparsedp.mechanisms.noisy_sums import Review, first_pass_chances
from sparsedp.randomness import NoiseSource

CELL = 2.0**24


def reviews(variances: Sequence[float], deviations: float) -> list[Review]:
    cells = [variance * CELL**2 for variance in variances]
    return [Review(variance, round(deviations * math.sqrt(variance) + 0.5)) for variance in cells]


@pytest.mark.parametrize("deviations", [0.0, 1.3, 3.5])
def test_the_chance_to_pass_two_reviews_is_that_of_two_correlated_numbers(deviations: float) -> None:
    """Of a sum over n and over 2 n steps, whose correlation is the root of a half."""
    first, second = first_pass_chances(reviews([3.0, 6.0], deviations))
    none = stats.multivariate_normal(cov=[[1.0, 0.5**0.5], [0.5**0.5, 1.0]], abseps=1e-12, releps=1e-12)
    assert first == pytest.approx(float(ndtr(-deviations)), rel=1e-6)  # the threshold is rounded to a cell
    expected = 1 - float(none.cdf(np.array([deviations, deviations]))) / (1 - first)
    assert second == pytest.approx(expected, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("deviations", [0.0, 1.3, 3.5, 7.0])
def test_the_quadrature_is_right_to_the_digits_that_are_claimed(
    deviations: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against panels a third as wide that reach further, for forty reviews and for steps of uneven noise."""
    steps = [1.0, 2.0, 3.0, 4.0]
    while len(steps) < 40:
        steps.append(steps[-1] * 3 // 2)
    for variances in (steps, [4.0, 8.0, 12.0, 13.0, 20.0, 22.0]):
        usual = first_pass_chances(reviews(variances, deviations))
        with monkeypatch.context() as finer:
            finer.setattr(noisy_sums, "_PANEL", 0.5)
            finer.setattr(noisy_sums, "_TAIL", 13.0)
            np.testing.assert_allclose(usual, first_pass_chances(reviews(variances, deviations)), rtol=1e-12)


ROWS = 40_000
STEPS = 13
REVIEWED = (1, 2, 3, 4, 6, 9, 13)
KINDS: dict[str, dict[int, float]] = {
    "nobody": {},
    "early": {1: 2.0},
    "late": {5: 1.5, 8: 2.5},
    "at a review": {6: 3.0},
    "always": dict.fromkeys(range(1, STEPS + 1), 0.7),
}
"""Which steps read a row, and its count there."""
DEVIATIONS = 1.0


def std_at(step: int, factor: float = 1.0) -> float:
    """Noise that grows in the course of the training, between two reviews."""
    return factor * (2.0 if step < 12 else 4.0)


def counts_at(step: int) -> SparseCounts:
    """The rows of every kind in turn: row r is of kind r modulo their number."""
    values = np.zeros(ROWS * len(KINDS))
    for number, plan in enumerate(KINDS.values()):
        values[number :: len(KINDS)] = plan.get(step, 0.0)
    ids = np.flatnonzero(values)
    return SparseCounts(ids, values[ids], values.size)


def passed_by(sums: NoisySums, seed: int) -> I64:
    """For each row, which reviews it passes, as bits."""
    stream, bits = NoiseSource(seed).selection, np.zeros(ROWS * len(KINDS), np.int64)
    for step in range(1, STEPS + 1):
        sums.add(counts_at(step), std_at(step), stream)
        if step in REVIEWED:
            bits[sums.review(stream).ids] |= 1 << REVIEWED.index(step)
    return bits


def passed_densely(seed: int, factor: float = 1.0) -> I64:
    """The same with noise on every row."""
    rng, bits = np.random.default_rng(seed), np.zeros(ROWS * len(KINDS), np.int64)
    sums: F64 = np.zeros(bits.size)
    variance = 0.0
    for step in range(1, STEPS + 1):
        sums += counts_at(step).dense() + rng.normal(0.0, std_at(step, factor), sums.size)
        variance += std_at(step) ** 2
        if step in REVIEWED:
            bits[sums >= DEVIATIONS * math.sqrt(variance)] |= 1 << REVIEWED.index(step)
    return bits


def p_value(first: I64, second: I64) -> float:
    """Of the chi-squared test that two samples have one law; rare values are put together."""
    table = np.stack([np.bincount(bits, minlength=1 << len(REVIEWED)) for bits in (first, second)])
    often = table.sum(axis=0) >= 20
    pooled = np.column_stack([table[:, often], table[:, ~often].sum(axis=1)])
    return float(stats.chi2_contingency(pooled[:, pooled.sum(axis=0) > 0]).pvalue)


@pytest.fixture(scope="module")
def passed() -> I64:
    return passed_by(NoisySums(ROWS * len(KINDS), DEVIATIONS), seed=3)


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_passes_all_reviews_together_as_if_every_row_had_its_noise(kind: str, passed: I64) -> None:
    """The joint law of seven reviews. Each test errs with probability below 1e-9; 20% more noise is rejected."""
    part = slice(list(KINDS).index(kind), None, len(KINDS))
    assert p_value(passed[part], passed_densely(4)[part]) > 1e-9
    assert p_value(passed[part], passed_densely(5, factor=1.2)[part]) < 1e-9


def test_sums_that_pass_have_the_law_of_a_tail() -> None:
    """Of rows that nobody reads, at the third review, given that they pass it: a Gaussian's tail, at 1e-9."""
    sums, stream = NoisySums(200_000, 1.0), NoiseSource(6).selection
    for _ in range(3):
        sums.add(SparseCounts.zeros(200_000), 5.0, stream)
        found = sums.review(stream)
    law = stats.truncnorm(1.0, np.inf)
    assert found.ids.size == pytest.approx(200_000 * float(ndtr(-1.0)), rel=0.05)
    assert stats.kstest(found.values, law.cdf).pvalue > 1e-9
    assert (np.diff(found.ids) > 0).all()


def test_sums_that_pass_for_the_first_time_have_the_law_of_walks_that_have_not_passed_before() -> None:
    """At the second of two reviews that are close: against walks of every row, at 1e-9."""
    size, steps = 400_000, (9.0, 1.0)
    sums, stream = NoisySums(size, 0.5), NoiseSource(6).selection
    found = []
    for variance in steps:
        sums.add(SparseCounts.zeros(size), math.sqrt(variance), stream)
        found.append(sums.review(stream))
    new = found[1].values[~np.isin(found[1].ids, found[0].ids)]
    walk = np.random.default_rng(7).normal(size=(2, size)) * np.sqrt(steps)[:, None]
    first, second = walk[0], walk.sum(axis=0)
    dense = second[(first < 0.5 * 3.0) & (second >= 0.5 * math.sqrt(10.0))] / math.sqrt(10.0)
    assert new.size == pytest.approx(dense.size, rel=0.05)
    assert stats.ks_2samp(new, dense).pvalue > 1e-9


def test_a_table_of_a_billion_rows_costs_what_is_read() -> None:
    """Only rows that were read, or that passed, are known."""
    size, stream, rng = 10**9, NoiseSource(7).selection, np.random.default_rng(8)
    sums, read = NoisySums(size, 5.5), np.empty(0, np.int64)
    for step in range(1, 30):
        ids = np.unique(rng.integers(0, size, 1000))
        read = np.union1d(read, ids)
        sums.add(SparseCounts(ids, np.ones(ids.size), size), 10.0, stream)
        if step % 5 == 0:
            before = sums.known
            passed = sums.review(stream).ids
            assert sums.known <= read.size + 6 * 40  # by chance 19 pass a review
            assert before <= sums.known
            assert passed.size < 60


def test_reads_are_merged_before_they_outgrow_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand steps that read the same rows are held as a few, and add up."""
    monkeypatch.setattr(noisy_sums, "_FEW", 10)
    sums, stream = NoisySums(50, 3.0), NoiseSource(9).selection
    every = SparseCounts(np.arange(20), np.full(20, 4.0), 50)
    for _ in range(1000):
        sums.add(every, 1.0, stream)
        assert sum(part.rows.size for part in sums._reads) <= 60
    found = sums.review(stream)
    assert set(range(20)) <= set(found.ids.tolist())
    assert found.values[:20] * math.sqrt(1000) == pytest.approx(4000, rel=0.05)


SOME = SparseCounts(np.array([1]), np.array([50.0]), 9)


def test_a_call_that_is_interrupted_leaves_the_sums_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads would be counted twice, those of read rows alone."""
    sums, stream, noise = NoisySums(9, 2.0), NoiseSource(1).selection, NoisySums._noise

    def interrupted(self: NoisySums, *arguments: Any) -> None:
        monkeypatch.setattr(NoisySums, "_noise", noise)
        raise KeyboardInterrupt

    sums.add(SOME, 1.0, stream)
    monkeypatch.setattr(NoisySums, "_noise", interrupted)
    with pytest.raises(KeyboardInterrupt):
        sums.review(stream)
    assert float(sums.review(stream).values[0]) == pytest.approx(50.0, abs=12.0)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_sums_cannot_be_copied(copied: Callable[[Any], Any]) -> None:
    with pytest.raises(TypeError, match="go on once only"):
        copied(NoisySums(9, 2.0))


def test_a_fork_has_no_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    sums, stream = NoisySums(9, 2.0), NoiseSource(1).selection
    sums.add(SOME, 1.0, stream)
    monkeypatch.setattr("os.getpid", lambda: -1)
    for use in (lambda: sums.add(SOME, 1.0, stream), lambda: sums.review(stream)):
        with pytest.raises(RuntimeError, match="go on once only"):
            use()


def test_sums_do_not_wrap() -> None:
    """With hardly any noise: each count is within what the noise's lattice allows, and the sum of some is not."""
    sums, stream = NoisySums(9, 2.0), NoiseSource(1).selection
    for step in range(1, 43):
        sums.add(SparseCounts(np.array([1]), np.array([1.2e11]), 9), 1.0, stream)
        assert step % 7 or 1 in sums.review(stream).ids


def test_ids_that_the_caller_changes_later() -> None:
    sums, ids, stream = NoisySums(9, 3.5), np.array([2]), NoiseSource(1).selection
    sums.add(SparseCounts(ids, np.array([50.0]), 9), 1.0, stream)
    ids[0] = 7
    assert sums.review(stream).ids.tolist() == [2]


def test_a_review_needs_a_step_and_a_refused_one_changes_nothing() -> None:
    sums, stream = NoisySums(9, 3.5), NoiseSource(1).selection
    for _ in range(2):
        with pytest.raises(ValueError, match="review: needs a step"):
            sums.review(stream)
        sums.add(SOME, 1.0, stream)
        assert 1 in sums.review(stream).ids


@pytest.mark.parametrize(
    ("ids", "values", "std"),
    [
        ([12], [1.0], 1.0),
        ([-1], [1.0], 1.0),
        ([2, 2], [1.0, 1.0], 1.0),
        ([1], [math.nan], 1.0),
        ([1], [1.0], 0.0),
    ],
)
def test_counts_that_are_none_are_refused(ids: list[int], values: list[float], std: float) -> None:
    counts = SparseCounts(np.array(ids), np.array(values), 9)
    with pytest.raises(ValueError, match=r"ids|values|std"):
        NoisySums(9, 3.0).add(counts, std, NoiseSource(1).selection)


def test_deviations_that_are_none_are_refused() -> None:
    for deviations in (-1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="deviations"):
            NoisySums(9, deviations)
