import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats
from scipy.optimize import brentq

from sparsedp.accounting import epsilon_of
from sparsedp.accounting.events import SparseVectorDpEvent
from sparsedp.audit.distinguishing import audit, repeated
from sparsedp.mechanisms import gaussian_std, numeric_sparse, sparse_vector, sparse_vector_event

IDS, VALUES, SIZE = np.array([1, 2, 5]), np.array([2.0, -1.5, 0.7]), 7
SCALES = {"threshold_scale": 0.7, "query_scale": 1.1}


def algorithm_1(values, stream, runs, *, threshold, c1, threshold_scale, query_scale, answer_scale, stop):
    """WIDE's Algorithm 1 line by line on a dense vector, for many runs at once; ``stop(count)`` is line 9."""
    noisy_threshold = threshold + threshold_scale * stream.laplace(runs)
    count, running = np.zeros(runs, dtype=int), np.ones(runs, dtype=bool)
    answers = np.full((runs, len(values)), np.nan)
    for i, u in enumerate(values):
        passes = running & (abs(u) + query_scale * stream.laplace(runs) >= noisy_threshold)
        answers[passes, i] = u + answer_scale * stream.laplace(int(passes.sum()))
        count += passes
        noisy_threshold = np.where(
            passes, threshold + threshold_scale * stream.laplace(runs), noisy_threshold
        )
        running &= ~stop(count, c1)
    return answers


def at_least(count, c1):
    return count >= c1


def more_than(count, c1):
    return count > c1


@pytest.mark.parametrize("positives", [1, 3])
@pytest.mark.parametrize("threshold", [-3.0, 1.2, 4.0])
def test_the_law_is_that_of_the_dense_form(positives, threshold, stream, same_law):
    found = np.array(
        [
            (
                1
                << sparse_vector(
                    IDS, VALUES, SIZE, threshold=threshold, positives=positives, **SCALES, stream=stream
                )
            ).sum()
            for _ in range(2_500)
        ]
    )
    dense = np.zeros(SIZE)
    dense[IDS] = VALUES

    def textbook(**changed):
        options = {
            "threshold": threshold,
            "c1": positives,
            "answer_scale": 1.0,
            "stop": at_least,
            **SCALES,
        } | changed
        return ~np.isnan(algorithm_1(dense, stream, 100_000, **options)) @ (1 << np.arange(SIZE))

    assert same_law(found, textbook())
    if threshold < 2:  # above it the stop is seldom reached
        assert not same_law(found, textbook(stop=more_than))
    if threshold > 0:
        assert not same_law(found, textbook(query_scale=1.5))


def test_answers_are_laplace_around_the_values(stream):
    found, answers = numeric_sparse(
        np.arange(0, 20_000, 2),
        np.tile([3.0, -3.0], 5_000),
        20_000,
        threshold=-50.0,
        positives=20_000,
        **SCALES,
        answer_scale=2.0,
        stream=stream,
    )
    assert np.array_equal(found, np.arange(20_000))
    truth = np.tile([3.0, 0.0, -3.0, 0.0], 5_000)
    assert stats.kstest(answers - truth, stats.laplace(scale=2.0).cdf).pvalue > 1e-9
    assert stats.kstest(answers - truth, stats.laplace(scale=2.4).cdf).pvalue < 1e-9


def test_values_and_thresholds_far_beyond_the_noise(stream):
    options = {"positives": 2, **SCALES, "stream": stream}
    assert sparse_vector([3], [1e300], 5, threshold=1e200, **options).tolist() == [3]
    assert sparse_vector([3], [1e9], 5, threshold=2e9, **options).size == 0
    assert sparse_vector([3], [2e9 + 100], 5, threshold=2e9, **options).tolist() == [3]


def test_scales_too_different_for_one_lattice_are_refused(stream):
    with pytest.raises(ValueError, match="within a factor of 1024"):
        sparse_vector(
            [], [], 5, threshold=1.0, positives=1, threshold_scale=1.0, query_scale=1025.0, stream=stream
        )


def test_never_more_than_asked_for(stream):
    for positives in (1, 5):
        found = sparse_vector([], [], 100, threshold=-99.0, positives=positives, **SCALES, stream=stream)
        assert np.array_equal(found, np.arange(positives))


def test_untouched_rows_of_a_huge_space(stream):
    """1e15 rows that pass with probability 0.5 e^-30 = 4.7e-14 each: gaps of 2e13 rows."""
    found = np.concatenate(
        [
            sparse_vector(
                [],
                [],
                10**15,
                threshold=30.0,
                positives=9,
                threshold_scale=0.01,
                query_scale=1.0,
                stream=stream,
            )
            for _ in range(200)
        ]
    )
    gaps = np.diff(found)
    assert np.mean(gaps[gaps > 0]) == pytest.approx(2 * np.exp(30.0), rel=0.2)


@given(arrays(np.float64, 5, elements=st.floats(-3, 3)), arrays(np.float64, 5, elements=st.floats(-1, 1)))
def test_absolute_values_move_no_further_than_values(values, moves):
    assert np.abs(np.abs(values + moves) - np.abs(values)).max() <= np.abs(moves).max() + 1e-12


def test_audit_of_one_round(stream):
    """All rows but the last fall by one while the last rises: eps = 1/threshold_scale + 2/query_scale = 2."""
    scales = {"threshold_scale": 1.0, "query_scale": 2.0}
    pair = (np.array([1.0, 1.0, 1.0, 3.0]), np.array([2.0, 2.0, 2.0, 2.0]))

    def mechanism(factor):
        def once(values, stream):
            noise = {name: factor * scale for name, scale in scales.items()}
            return sparse_vector(np.arange(4), values, 4, threshold=3.0, positives=1, **noise, stream=stream)

        return repeated(once, lambda found: float(found.size > 0 and found[0] == 3))

    options = {"runs": 6_000, "delta": 0.0, "claimed": 2.0, "stream": stream}
    right = audit(mechanism(1.0), pair, **options)
    assert not right.refuted
    assert right.lower_bound > 0.2
    assert audit(mechanism(0.1), pair, **options).refuted


# c1 = 1 and a threshold that everything passes: an answer costs 1, and finding its row 0.2.
ONE_ANSWER = {
    "threshold": -1000.0,
    "c1": 1,
    "threshold_scale": 10.0,
    "query_scale": 20.0,
    "answer_scale": 1.0,
}
CLAIM = 1 / 10.0 + 2 / 20.0 + 1 / 1.0


def smallest_answer(stop):
    def run(values, stream, runs):
        answers = algorithm_1(values, stream, runs, stop=stop, **ONE_ANSWER)
        return np.nanmin(answers, axis=1)

    return run


PAIR = (np.array([1.0, 1.0, 1.0]), np.array([0.0, 0.0, 0.0]))


def test_audit_catches_the_answer_too_many_of_wide(stream):
    """``count > c1`` answers c1 + 1 queries."""
    assert (
        np.isfinite(algorithm_1(PAIR[0], stream, 9, stop=more_than, **ONE_ANSWER)).sum(axis=1).tolist()
        == [2] * 9
    )
    result = audit(smallest_answer(more_than), PAIR, runs=100_000, delta=0.0, claimed=CLAIM, stream=stream)
    assert result.refuted
    assert pytest.approx(1.2) == CLAIM
    assert result.lower_bound == pytest.approx(1.81, abs=0.02)


def test_audit_of_the_right_stop(stream):
    result = audit(smallest_answer(at_least), PAIR, runs=100_000, delta=0.0, claimed=CLAIM, stream=stream)
    assert not result.refuted

    def once(values, stream):
        settings = {name: value for name, value in ONE_ANSWER.items() if name != "c1"}
        return numeric_sparse(np.arange(3), values, 3, positives=1, **settings, stream=stream)[1]

    ours = audit(
        repeated(once, lambda answers: answers[0]), PAIR, runs=2_000, delta=0.0, claimed=CLAIM, stream=stream
    )
    assert not ours.refuted
    assert ours.lower_bound > 0.3


def test_event():
    event = sparse_vector_event(
        positives=4, sensitivity=0.5, threshold_scale=1.0, query_scale=2.0, answer_scale=3.0
    )
    assert event == SparseVectorDpEvent(4, 2.0, 4.0, 6.0)
    assert sparse_vector_event(positives=1, sensitivity=2.0, **SCALES).answer_scale == np.inf


def test_how_much_less_noise_a_gaussian_map_needs():
    """1000 rows found, epsilon 1, delta 1e-6, 26 rows an example: the noise on one row."""
    found, epsilon, delta, rows_an_example = 1000, 1.0, 1e-6, 26

    def excess(scale):  # threshold noise; twice that on every row, as in Algorithm 1
        event = sparse_vector_event(
            positives=found, sensitivity=1.0, threshold_scale=scale, query_scale=2 * scale
        )
        return epsilon_of([(event, 1)], delta) - epsilon

    sparse_vector_std = np.sqrt(2) * 2 * brentq(excess, 100.0, 1000.0, xtol=0.1)
    map_std = gaussian_std(sensitivity=np.sqrt(rows_an_example), epsilon=epsilon, delta=delta)
    assert sparse_vector_std / map_std == pytest.approx(35, abs=0.5)


@pytest.mark.parametrize(
    ("bad", "named"),
    [
        ({"positives": 0}, "positives"),
        ({"threshold": np.nan}, "threshold"),
        ({"threshold_scale": 0.0}, "threshold_scale"),
        ({"query_scale": -1.0}, "query_scale"),
    ],
)
def test_bad_input(bad, named, stream):
    with pytest.raises(ValueError, match=f"^{named} "):
        sparse_vector(
            IDS, VALUES, SIZE, **{"threshold": 1.0, "positives": 1, "stream": stream} | SCALES | bad
        )
