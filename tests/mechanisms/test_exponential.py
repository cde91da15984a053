import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.special import softmax

from sparsedp.accounting.events import BoundedRangeGaussianDpEvent
from sparsedp.audit.distinguishing import audit, exact_epsilon, repeated
from sparsedp.mechanisms import exponential, exponential_event, exponential_top_k

IDS, SCORES, SIZE = np.array([1, 4]), np.array([3.0, -1.0]), 6
EPSILON, SENSITIVITY = 1.6, 2.0
scores4 = arrays(np.float64, 4, elements=st.floats(-5, 5))


def peeling(weights, k):
    """P(set) of k successive draws without replacement, for every set of k rows."""
    sets = {}
    for order in itertools.permutations(range(len(weights)), k):
        left, probability = weights.sum(), 1.0
        for row in order:
            probability *= weights[row] / left
            left -= weights[row]
        code = sum(1 << row for row in order)
        sets[code] = sets.get(code, 0.0) + probability
    return np.array([sets.get(code, 0.0) for code in range(1 << len(weights))])


def dense_weights(epsilon=EPSILON):
    dense = np.zeros(SIZE)
    dense[IDS] = SCORES
    return np.exp(epsilon * dense / (2 * SENSITIVITY))


@pytest.mark.parametrize("k", [1, 2, 5, 6])
def test_k_draws_have_the_law_of_the_textbook(k, stream, follows):
    found = [
        exponential_top_k(IDS, SCORES, SIZE, k=k, epsilon=EPSILON, sensitivity=SENSITIVITY, stream=stream)
        for _ in range(3_000)
    ]
    assert all(each.size == k for each in found)
    counts = np.bincount([(1 << each).sum() for each in found], minlength=1 << SIZE)
    assert follows(counts, peeling(dense_weights(), k))
    if k < SIZE:
        assert not follows(counts, peeling(dense_weights(1.8 * EPSILON), k))


def test_one_draw_of_a_few_candidates(stream, follows):
    scores = np.array([0.0, 1.0, 4.0])
    draws = exponential(np.tile(scores, (50_000, 1)), epsilon=1.0, sensitivity=1.0, stream=stream)
    counts = np.bincount(draws, minlength=3)
    assert follows(counts, softmax(scores / 2))
    assert not follows(counts, softmax(scores / 1.9))


@given(scores4, arrays(np.float64, 4, elements=st.floats(-1, 1)), st.floats(0.01, 5))
def test_adversarial_moves_stay_within_epsilon_and_its_range(scores, moves, epsilon):
    before, after = softmax(epsilon * scores / 2), softmax(epsilon * (scores + moves) / 2)
    assert exact_epsilon(before, after) <= epsilon + 1e-9
    assert np.ptp(np.log(after) - np.log(before)) <= epsilon + 1e-9  # bounded range


@given(st.lists(arrays(np.float64, (4, 3), elements=st.floats(-3, 3)), min_size=1, max_size=4))
@settings(max_examples=200, deadline=None)
def test_the_sensitivity_of_capped_row_norms(gradients):
    """WIDE's scores, capped row norms of the mean clipped gradient: min(S0, S1/b), add or remove."""
    cap, clip, batch = 0.4, 1.5, 2.0
    clipped = [g / max(1.0, np.linalg.norm(g) / clip) for g in gradients]

    def scores(kept):
        return np.minimum(np.linalg.norm(sum(kept, np.zeros((4, 3))) / batch, axis=1), cap)

    assert np.abs(scores(clipped) - scores(clipped[1:])).max() <= min(cap, clip / batch) + 1e-12


def test_audit_of_one_draw(stream):
    scores = np.array([-3.0, 0.0, 0.0])
    pair = (scores + np.array([1.0, -1.0, -1.0]), scores)

    def mechanism(factor):
        def run(scores, stream, runs):
            chosen = exponential(np.tile(scores, (runs, 1)), epsilon=factor, sensitivity=1.0, stream=stream)
            return (chosen == 0).astype(float)

        return run

    right = audit(mechanism(1.0), pair, runs=400_000, delta=0.0, claimed=1.0, stream=stream)
    assert not right.refuted
    assert right.lower_bound > 0.7
    # The factor 2 of the exponent forgotten:
    assert audit(mechanism(2.0), pair, runs=400_000, delta=0.0, claimed=1.0, stream=stream).refuted


def test_audit_of_k_draws(stream):
    """A heavy row that moves while all others stand still: k draws cost up to k epsilon, and no more."""
    epsilon, k, others = 1.0, 5, 40
    ids = np.array([7])

    def once(score, stream):
        return exponential_top_k(
            ids, [score], others + 1, k=k, epsilon=epsilon, sensitivity=0.5, stream=stream
        )

    mechanism = repeated(once, lambda found: float(7 in found))
    result = audit(mechanism, (3.0, 4.0), runs=3_000, delta=0.0, claimed=k * epsilon, stream=stream)
    assert not result.refuted
    assert result.lower_bound > 0.5


def test_the_printed_exponent_of_sgo_algorithm_4_is_not_private():
    """P(x) ~ exp(-B F_S(x) / (eps n)) on a net of [0, 1] with the loss |x - z|, B = 1, replace-one."""
    net, epsilon, n, bound = np.linspace(0.0, 1.0, 11), 0.1, 2, 1.0

    def risk(data):
        return np.abs(net[:, None] - np.asarray(data)[None, :]).mean(axis=1)

    pair = (risk([0.0, 0.0]), risk([1.0, 0.0]))
    printed = [softmax(-bound / (epsilon * n) * r) for r in pair]
    corrected = [softmax(-epsilon * n / (2 * bound) * r) for r in pair]
    assert exact_epsilon(*printed) == pytest.approx(3.53, abs=0.01)
    assert exact_epsilon(*corrected) < epsilon


def test_the_corrected_exponent_is_what_exponential_does(stream, follows):
    """F_S moves by at most B/n: passing -F_S and sensitivity B/n gives exp(-eps n F_S / (2B))."""
    risk, epsilon, n = np.array([0.1, 0.5, 0.9]), 0.4, 30
    draws = exponential(np.tile(-risk, (50_000, 1)), epsilon=epsilon, sensitivity=1.0 / n, stream=stream)
    assert follows(np.bincount(draws, minlength=3), softmax(-epsilon * n * risk / 2))


def test_event():
    assert exponential_event(draws=3, epsilon=0.5) == BoundedRangeGaussianDpEvent(3, 0.5)
    with_gradient = exponential_event(draws=3, epsilon=0.5, noise_multiplier=1.7)
    assert with_gradient == BoundedRangeGaussianDpEvent(3, 0.5, 1.7)


@pytest.mark.parametrize(
    ("bad", "named"),
    [({"k": 0}, "k"), ({"k": 7}, "k"), ({"epsilon": 0.0}, "epsilon"), ({"sensitivity": -1.0}, "sensitivity")],
)
def test_bad_input(bad, named, stream):
    good = {"k": 2, "epsilon": 1.0, "sensitivity": 1.0, "stream": stream}
    with pytest.raises(ValueError, match=f"^{named} "):
        exponential_top_k(IDS, SCORES, SIZE, **good | bad)


@pytest.mark.parametrize("scores", [[], np.zeros((3, 0)), 1.0, [np.nan, 1.0]])
def test_bad_scores(scores, stream):
    with pytest.raises(ValueError, match=r"^scores "):
        exponential(scores, epsilon=1.0, sensitivity=1.0, stream=stream)
