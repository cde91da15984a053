import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats

from sparsedp.audit.distinguishing import audit, exact_epsilon
from sparsedp.mechanisms import report_noisy_max

GRID = np.linspace(-60.0, 60.0, 24_001)


def law(scores, scale):
    """P(candidate i has the largest score + Laplace(scale)), by quadrature over i's own noisy score."""
    scores = np.asarray(scores) / scale
    below = stats.laplace.cdf(GRID[None, :] - scores[:, None])
    density = stats.laplace.pdf(GRID[None, :] - scores[:, None])
    others = np.array([np.prod(np.delete(below, i, axis=0), axis=0) for i in range(len(scores))])
    probabilities = np.trapezoid(density * others, GRID, axis=1)
    return probabilities / probabilities.sum()


def test_the_law_and_a_wrong_scale(stream, follows):
    scores = np.array([0.0, -1.0, 2.0, 1.5])
    draws = report_noisy_max(np.tile(scores, (50_000, 1)), epsilon=1.0, sensitivity=1.0, stream=stream)
    counts = np.bincount(draws, minlength=4)
    assert follows(counts, law(scores, 2.0))
    assert not follows(counts, law(scores, 1.8))


@given(
    arrays(np.float64, 3, elements=st.floats(-3, 3)),
    arrays(np.float64, 3, elements=st.floats(-1, 1)),
    st.floats(0.2, 4),
)
@settings(deadline=None, max_examples=60)
def test_adversarial_moves_stay_within_epsilon(scores, moves, epsilon):
    scale = 2.0 / epsilon
    assert exact_epsilon(law(scores, scale), law(scores + moves, scale)) <= epsilon + 1e-3


@given(arrays(np.float64, (5, 4), elements=st.floats(0, 1)), arrays(np.float64, 4, elements=st.floats(0, 1)))
def test_centred_risks_move_by_half_the_range_either_way(losses, replacement):
    """SGO (A.4): an example's losses spread over B at most, so the moves of the risks spread over 2B/n.

    A common shift changes nothing, so every score moves by at most B/n either way, which is what
    ``sensitivity`` asks for. Uncentred they have no bound at all.
    """
    n, bound, offset = len(losses), 1.0, 1e6
    before = losses.mean(axis=0)
    after = np.vstack([losses[1:], replacement + offset]).mean(axis=0)
    moves = after - before
    assert np.ptp(moves) <= 2 * bound / n + 1e-9
    assert np.abs(moves).max() > 1000 * bound / n


EPSILON_LAST = 1.0  # SGO's Algorithm 7 leaves epsilon / (K + 1) for its last step
FAR = np.array([0.0, 2.0])  # in units of B/n
PAIR = (FAR + np.array([-1.0, 1.0]), FAR)


def noisy_min(scale):
    def run(risks, stream, runs):
        return np.argmin(np.tile(risks, (runs, 1)) + scale * stream.laplace((runs, 2)), axis=1)

    return run


def test_audit_catches_the_printed_scale_of_sgo_algorithm_7(stream):
    """Risks in units of B/n; lambda = B (K+1) / (n eps) is Laplace(1) at epsilon 1 for the step."""
    printed = audit(
        noisy_min(EPSILON_LAST), PAIR, runs=1_000_000, delta=0.0, claimed=EPSILON_LAST, stream=stream
    )
    assert printed.refuted
    assert printed.lower_bound == pytest.approx(1.51, abs=0.03)
    assert exact_epsilon(law(-PAIR[0], 1.0), law(-PAIR[1], 1.0)) == pytest.approx(1.59, abs=0.01)


def test_audit_of_the_right_scale(stream):
    def mechanism(risks, stream, runs):
        return report_noisy_max(
            np.tile(-risks, (runs, 1)), epsilon=EPSILON_LAST, sensitivity=1.0, stream=stream
        )

    right = audit(mechanism, PAIR, runs=1_000_000, delta=0.0, claimed=EPSILON_LAST, stream=stream)
    assert not right.refuted
    assert right.lower_bound > 0.6


def test_shapes(stream):
    assert report_noisy_max([1.0], epsilon=1.0, sensitivity=1.0, stream=stream) == 0
    assert report_noisy_max(np.zeros((2, 3, 4)), epsilon=1.0, sensitivity=1.0, stream=stream).shape == (2, 3)


@pytest.mark.parametrize("bad", [{"epsilon": -1.0}, {"sensitivity": 0.0}])
def test_bad_input(bad, stream):
    with pytest.raises(ValueError, match=f"^{next(iter(bad))} "):
        report_noisy_max([1.0, 2.0], **{"epsilon": 1.0, "sensitivity": 1.0, "stream": stream} | bad)
