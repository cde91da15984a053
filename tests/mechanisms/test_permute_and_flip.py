import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.special import softmax

from sparsedp.audit.distinguishing import audit, exact_epsilon
from sparsedp.mechanisms import permute_and_flip


def textbook(scores, epsilon, sensitivity):
    """The law, by going through every order and every toss."""
    heads = np.exp(epsilon * (scores - scores.max()) / (2 * sensitivity))
    law = np.zeros(len(scores))
    orders = list(itertools.permutations(range(len(scores))))
    for order in orders:
        left = 1.0 / len(orders)
        for candidate in order:
            law[candidate] += left * heads[candidate]
            left *= 1.0 - heads[candidate]
    return law


scores4 = arrays(np.float64, 4, elements=st.floats(-3, 3))


def test_the_law_is_that_of_the_textbook(stream, follows):
    scores = np.array([0.0, -1.0, 2.0, 1.5])
    draws = permute_and_flip(np.tile(scores, (50_000, 1)), epsilon=1.0, sensitivity=1.0, stream=stream)
    counts = np.bincount(draws, minlength=4)
    assert follows(counts, textbook(scores, 1.0, 1.0))
    assert not follows(counts, textbook(scores, 1.2, 1.0))
    assert not follows(counts, softmax(scores / 2))


@given(scores4, arrays(np.float64, 4, elements=st.floats(-1, 1)), st.floats(0.05, 4))
@settings(deadline=None)
def test_adversarial_moves_stay_within_epsilon(scores, moves, epsilon):
    pair = (textbook(scores, epsilon, 1.0), textbook(scores + moves, epsilon, 1.0))
    assert exact_epsilon(*pair) <= epsilon + 1e-9


@given(scores4, st.floats(0.05, 4))
@settings(deadline=None)
def test_its_regret_is_never_above_that_of_the_exponential_mechanism(scores, epsilon):
    regret = scores.max() - scores
    assert textbook(scores, epsilon, 1.0) @ regret <= softmax(epsilon * scores / 2) @ regret + 1e-12


def test_audit_and_that_it_notices_a_missing_factor(stream):
    pair = (np.array([-2.0, 0.0]), np.array([-1.0, -1.0]))

    def mechanism(epsilon):
        def run(scores, stream, runs):
            tiled = np.tile(scores, (runs, 1))
            return permute_and_flip(tiled, epsilon=epsilon, sensitivity=1.0, stream=stream)

        return run

    right = audit(mechanism(1.0), pair, runs=400_000, delta=0.0, claimed=1.0, stream=stream)
    assert not right.refuted
    assert audit(mechanism(2.0), pair, runs=400_000, delta=0.0, claimed=1.0, stream=stream).refuted


def test_shapes(stream):
    assert permute_and_flip([1.0], epsilon=1.0, sensitivity=1.0, stream=stream) == 0
    assert permute_and_flip(np.zeros((2, 3, 4)), epsilon=1.0, sensitivity=1.0, stream=stream).shape == (2, 3)


@pytest.mark.parametrize("bad", [{"epsilon": 0.0}, {"sensitivity": np.nan}])
def test_bad_input(bad, stream):
    with pytest.raises(ValueError, match=f"^{next(iter(bad))} "):
        permute_and_flip([1.0, 2.0], **{"epsilon": 1.0, "sensitivity": 1.0, "stream": stream} | bad)
