import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr

from sparsedp.accounting import analytic_gaussian_epsilon
from sparsedp.accounting.events import GaussianDpEvent
from sparsedp.audit.distinguishing import audit
from sparsedp.mechanisms import threshold_for_false_positives, thresholded_counts, thresholded_counts_event
from sparsedp.mechanisms.thresholded_counts import _survivors
from sparsedp.randomness import bernoulli_positions

IDS = np.array([1, 2, 4])
COUNTS = np.array([2.0, 0.5, -1.0])
SIZE, STD, TAU = 6, 1.3, 0.8
RUNS = 30_000


def patterns(select, stream, runs=RUNS):
    """Runs side by side in one id space, so that one call makes them all; each answer as a bit pattern."""
    ids = (IDS + SIZE * np.arange(runs)[:, None]).ravel()
    bits = np.zeros(runs * SIZE, dtype=np.int64)
    bits[select(ids, np.tile(COUNTS, runs), runs * SIZE, stream)] = 1
    return bits.reshape(runs, SIZE) @ (1 << np.arange(SIZE))


def pattern_probabilities(std=STD):
    dense = np.zeros(SIZE)
    dense[IDS] = COUNTS
    survive = ndtr((dense - TAU) / std)
    bits = (np.arange(2**SIZE)[:, None] >> np.arange(SIZE)) & 1
    return np.where(bits == 1, survive, 1 - survive).prod(axis=1)


def ours(ids, counts, size, stream):
    return thresholded_counts(ids, counts, size, std=STD, threshold=TAU, stream=stream)


def union_instead_of_discard(ids, counts, size, stream):
    touched = ids[counts + STD * stream.normal(ids.size) >= TAU]
    return np.union1d(touched, bernoulli_positions(stream, size, float(ndtr(-TAU / STD))))


def test_the_law_is_that_of_the_dense_form(stream, follows):
    counts = np.bincount(patterns(ours, stream), minlength=2**SIZE)
    assert follows(counts, pattern_probabilities())
    assert not follows(counts, pattern_probabilities(std=1.1 * STD))
    assert not follows(counts, pattern_probabilities(std=STD**2))


def test_one_histogram_at_a_time_has_the_same_law(stream, follows):
    found = [
        thresholded_counts(IDS, COUNTS, SIZE, std=STD, threshold=TAU, stream=stream) for _ in range(5_000)
    ]
    codes = np.array([(1 << each).sum() for each in found])
    assert follows(np.bincount(codes, minlength=2**SIZE), pattern_probabilities())


def test_taking_the_union_with_the_hits_is_a_different_law(stream, follows):
    counts = np.bincount(patterns(union_instead_of_discard, stream), minlength=2**SIZE)
    assert not follows(counts, pattern_probabilities())


@given(st.data())
@settings(deadline=None, max_examples=200)
def test_one_example_moves_the_clipped_map_by_at_most_its_clip(data):
    rows, clip = 12, data.draw(st.floats(0.1, 5.0))
    maps = data.draw(st.lists(st.lists(st.booleans(), min_size=rows, max_size=rows), min_size=1, max_size=5))
    v = np.array(maps, dtype=float)
    norms = np.maximum(np.linalg.norm(v, axis=1), 1e-300)
    clipped = v * np.minimum(1.0, clip / norms)[:, None]
    assert np.linalg.norm(clipped.sum(axis=0) - clipped[1:].sum(axis=0)) <= clip * (1 + 1e-12)


# An audit of one row: an example with one row and C1 = 1 makes its count 1 in place of 0. At sigma1 C1 = 1/2
# the printed (sigma1 C1)^2 is half the standard deviation.
SIGMA1, DELTA = 0.5, 0.01
CLAIM = analytic_gaussian_epsilon(DELTA, 1 / SIGMA1)


def survivors_of_one_row(std):
    def run(count, stream, runs):
        ids = np.arange(runs) if count else np.empty(0, dtype=np.int64)
        bits = np.zeros(runs)
        bits[
            thresholded_counts(ids, np.full(ids.size, count), runs, std=std, threshold=1.0, stream=stream)
        ] = 1.0
        return bits

    return run


def test_audit(stream):
    result = audit(
        survivors_of_one_row(SIGMA1), (1.0, 0.0), runs=2_000_000, delta=DELTA, claimed=CLAIM, stream=stream
    )
    assert not result.refuted
    assert result.lower_bound > 2.5


def test_audit_catches_the_printed_variance_of_fest_b2(stream):
    result = audit(
        survivors_of_one_row(SIGMA1**2),
        (1.0, 0.0),
        runs=16_000_000,
        delta=DELTA,
        claimed=CLAIM,
        stream=stream,
    )
    assert pytest.approx(6.0, abs=0.01) == CLAIM
    assert result.refuted
    # About 500 of 16 million untouched rows pass, give or take 23: the bound scatters by 0.05.
    assert result.lower_bound == pytest.approx(9.27, abs=0.15)


def test_event():
    assert thresholded_counts_event(std=3.0, sensitivity=2.0) == GaussianDpEvent(1.5)


def test_sorted_int64_over_a_huge_space(stream):
    size, touched = 10**18, np.arange(1000) * 10**15
    found = thresholded_counts(touched, np.full(1000, 50.0), size, std=1.0, threshold=8.2, stream=stream)
    assert found.dtype == np.int64
    assert np.all(np.diff(found) > 0)
    assert np.isin(touched, found).sum() == 1000
    assert 0 < found.size - 1000 < 1000  # 1e18 Psi(8.2) = 120 expected


@pytest.mark.parametrize(
    ("bad", "named"),
    [({"std": 0.0}, "std"), ({"std": np.nan}, "std"), ({"threshold": np.inf}, "threshold")],
)
def test_bad_input(bad, named, stream):
    with pytest.raises(ValueError, match=f"^{named} "):
        thresholded_counts(IDS, COUNTS, SIZE, **{"std": 1.0, "threshold": 1.0, "stream": stream} | bad)


def test_a_row_survives_from_the_threshold_s_own_cell_on():
    """By hand: touched rows by their integer, hits of the gaps only where nobody touched the row, in order."""
    touched, noisy = np.array([2, 5, 6, 9]), np.array([10, 9, 11, 10])
    hits = np.array([0, 2, 5, 7, 9, 12])
    found = np.empty(touched.size + hits.size, np.int64)
    count = _survivors(touched, noisy, 10, hits, found)
    assert found[:count].tolist() == [0, 2, 6, 7, 9, 12]
    nothing = np.empty(0, np.int64)
    assert _survivors(nothing, nothing, 10, hits, found) == hits.size
    assert found[: hits.size].tolist() == hits.tolist()
    assert _survivors(touched, noisy, 12, nothing, found) == 0


@pytest.mark.parametrize(
    ("expected", "rows", "share"), [(5.0, 100, 0.05), (50.0, 100, 0.5), (80.0, 100, 0.5), (1e-3, 10, 1e-4)]
)
def test_the_threshold_passes_the_expected_share_of_empty_rows(expected, rows, share):
    found = threshold_for_false_positives(expected, rows, 3.0)
    assert ndtr(-found / 3.0) == pytest.approx(share)
    assert threshold_for_false_positives(expected, 0, 3.0) == math.inf
