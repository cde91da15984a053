import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from support.spies import spy

from sparsedp.audit.distinguishing import exact_epsilon
from sparsedp.convex import SparseExponentialMechanism
from sparsedp.convex.erm import sparse_exponential
from sparsedp.convex.erm.sparse_exponential import lattice, lattice_points
from sparsedp.randomness import NoiseSource

GOOD = {"epsilon": 1.0, "dimension": 3, "radius": 1.0, "lipschitz": 1.0, "sparsity": 1}


@pytest.mark.parametrize(("d", "square"), [(1, 30), (2, 9), (3, 5), (4, 4), (6, 2), (2, 0)])
def test_the_lattice_is_complete_and_counted(d, square):
    reach = math.isqrt(square)
    everything = {
        p for p in itertools.product(range(-reach, reach + 1), repeat=d) if sum(v * v for v in p) <= square
    }
    points = lattice(d, square)
    assert {tuple(int(v) for v in row) for row in points.toarray()} == everything
    assert points.shape[0] == lattice_points(d, square) == len(everything)


def test_huge_counts():
    assert lattice_points(10**6, 2) == 1 + 2 * 10**6 + 4 * math.comb(10**6, 2)
    assert lattice_points(1000, 200) > 1e200
    assert lattice_points(10**9, 300) == math.inf


@settings(deadline=None)
@given(arrays(np.float64, 3, elements=st.floats(-1, 1)), st.floats(0.2, 1.5))
def test_every_point_of_the_ball_has_a_sparse_neighbour_in_the_net(x, tau):
    x = x / max(1.0, float(np.linalg.norm(x)))
    mechanism = SparseExponentialMechanism(tau=tau, **GOOD)
    cut = np.trunc(x / tau) * tau
    net = lattice(3, mechanism._budget(1)).toarray() * tau
    assert np.abs(net - cut).max(axis=1).min() < 1e-9
    assert np.abs(cut - x).max() < tau
    assert np.count_nonzero(cut) <= (1.0 / tau) ** 2 * (1 + 1e-9)


def test_tau_solves_the_corrected_equation():
    for n in (10, 1000, 100_000):
        tau = SparseExponentialMechanism(**{**GOOD, "loss_range": 0.7}).mesh(n)
        assert tau**3 / math.log(3 / (tau * 0.05)) == pytest.approx(0.7 / n)
    # It scales with the radius, and shrinks with n where the printed equation would let it grow.
    large = SparseExponentialMechanism(**{**GOOD, "radius": 5.0})
    assert large.mesh(1000) == pytest.approx(5.0 * SparseExponentialMechanism(**GOOD).mesh(1000))
    assert large.mesh(100_000) < 0.3 * large.mesh(1000)


def absolute_losses(data):
    """f(x, z) = |<x, z> - 0.3| / 2 with |z| <= 1 on the unit ball: convex, 1/2-Lipschitz, range at most 1."""
    return lambda points: np.abs(points @ data.T - 0.3).mean(axis=1) / 2


def law(losses, points, n, epsilon, loss_range):
    logits = -epsilon * n * losses(points) / (2 * loss_range)
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


def neighbours(n):
    generator = np.random.default_rng(0)
    data = generator.standard_normal((n, 3))
    data /= np.linalg.norm(data, axis=1, keepdims=True)
    for replacement in np.vstack([np.eye(3), -np.eye(3)]):
        other = data.copy()
        data[0] = [1.0, 0.0, 0.0]
        other[0] = replacement
        yield data.copy(), other


def test_exact_privacy_and_the_printed_exponent_as_positive_control():
    """Probabilities are known, so epsilon is computed. Printed: exp(-(B / (eps n)) F_S)."""
    n, epsilon = 4, 0.05
    points = lattice(3, 9).toarray() / 3.0
    worst = printed = 0.0
    for first, second in neighbours(n):
        worst = max(
            worst, exact_epsilon(*(law(absolute_losses(x), points, n, epsilon, 1.0) for x in (first, second)))
        )
        laws = []
        for data in (first, second):
            weights = np.exp(-absolute_losses(data)(points) / (epsilon * n))
            laws.append(weights / weights.sum())
        printed = max(printed, exact_epsilon(*laws))
    assert 0.1 * epsilon < worst <= epsilon
    assert printed > epsilon


def test_draws_follow_the_law():
    n, epsilon = 30, 2.0
    data = next(neighbours(n))[0]
    mechanism = SparseExponentialMechanism(**{**GOOD, "epsilon": epsilon, "loss_range": 1.0, "tau": 0.5})
    points = lattice(3, 4).toarray() * 0.5
    expected = law(absolute_losses(data), points, n, epsilon, 1.0)
    source = NoiseSource(seed=1)
    losses = absolute_losses(data)
    drawn = [mechanism.draw(lambda p: losses(p.toarray()), n, source) for _ in range(1500)]
    index = {tuple(p): i for i, p in enumerate(points)}
    counts = np.bincount([index[tuple(r.x)] for r in drawn], minlength=len(points))
    chi_square = ((counts - 1500 * expected) ** 2 / (1500 * expected)).sum()
    degrees = len(points) - 1
    assert chi_square < degrees + 8.5 * math.sqrt(2 * degrees)
    flat = ((counts - 1500 / len(points)) ** 2 / (1500 / len(points))).sum()
    assert flat > degrees + 8.5 * math.sqrt(2 * degrees)  # a wrong law shows


def test_error_stays_below_the_bound():
    n = 2000
    data = next(neighbours(n))[0]
    losses = absolute_losses(data)
    mechanism = SparseExponentialMechanism(**{**GOOD, "epsilon": 4.0, "lipschitz": 0.5, "sparsity": 3})
    source = NoiseSource(seed=2)
    results = [mechanism.draw(lambda p: losses(p.toarray()), n, source) for _ in range(6)]
    best = losses(lattice(3, 400).toarray() / 20.0).min()
    excess = [losses(r.x[None, :])[0] - best for r in results]
    assert max(excess) <= results[0].error_bound < 0.3
    statement = results[0].statement
    assert (statement.epsilon, statement.delta, statement.adjacency) == (4.0, 0.0, "replace-one")
    assert not statement.private
    assert results[0].net_size == mechanism.net_size(n)


def test_a_net_that_is_too_large_is_refused_before_it_is_made():
    mechanism = SparseExponentialMechanism(**{**GOOD, "dimension": 1000, "sparsity": 5})
    with pytest.raises(ValueError, match=r"most_points is 1000000 and the net needs .* points"):
        mechanism.draw(lambda p: np.zeros(p.shape[0]), 1000)
    with pytest.raises(ValueError, match="tau must be at least"):
        SparseExponentialMechanism(**{**GOOD, "tau": 1e-4}).draw(lambda p: np.zeros(p.shape[0]), 1000)


def test_losses_are_checked():
    mechanism = SparseExponentialMechanism(**{**GOOD, "tau": 0.5})
    with pytest.raises(ValueError, match="losses must return one finite number"):
        mechanism.draw(lambda p: np.zeros(3), 10)
    with pytest.raises(ValueError, match="losses must return one finite number"):
        mechanism.draw(lambda p: np.full(p.shape[0], np.nan), 10)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epsilon": 0.0}, "epsilon must be positive"),
        ({"sparsity": 0}, "sparsity must be at least 1"),
        ({"sparsity": 4}, "sparsity must be at most the dimension"),
        ({"lipschitz": math.inf}, "lipschitz must be finite"),
        ({"radius": math.inf}, "radius must be finite"),
        ({"loss_range": 0.0}, "loss_range must be positive"),
        ({"tau": -1.0}, "tau must be positive"),
        ({"beta": 1.0}, "beta must lie"),
        ({"dimension": 0}, "dimension must be at least 1"),
        ({"most_points": 0}, "most_points must be at least 1"),
    ],
)
def test_bad_parameters(changes, message):
    with pytest.raises(ValueError, match=message):
        SparseExponentialMechanism(**{**GOOD, **changes})


def test_a_loss_range_that_the_data_break_is_refused():
    """All examples alike: the mean spans as much as each of them, three times what was promised."""
    mechanism = SparseExponentialMechanism(**{**GOOD, "loss_range": 0.1, "tau": 0.5})
    with pytest.raises(ValueError, match="loss_range must bound"):
        mechanism.draw(lambda points: 0.15 * points.sum(axis=1), 10)


@pytest.mark.parametrize("loss_range", [None, 0.8])
def test_the_draw_is_the_one_that_was_accounted_for(monkeypatch, loss_range):
    """Scores of n F_S, the whole epsilon, and B: replacing an example moves a score by B at most, either way."""
    calls = spy(monkeypatch, sparse_exponential, "exponential")
    mechanism = SparseExponentialMechanism(**{**GOOD, "epsilon": 0.7, "loss_range": loss_range, "tau": 0.5})
    n, data = 9, np.eye(3)
    result = mechanism.draw(absolute_losses(data), n, NoiseSource(1))
    (call,) = calls
    net = lattice(3, 4).toarray() * 0.5
    assert np.allclose(call["scores"], -n * absolute_losses(data)(net))
    assert (call["epsilon"], call["sensitivity"]) == (0.7, 2.0 if loss_range is None else 0.8)
    assert (result.statement.epsilon, result.statement.delta) == (0.7, 0.0)
    # Two data sets that differ in one example: no score moves by more than B, nor two apart by more than 2 B.
    other = data.copy()
    other[0] = [-1.0, 0.0, 0.0]
    moves = 3 * (absolute_losses(other)(net) - absolute_losses(data)(net))
    assert np.abs(moves).max() <= call["sensitivity"]
    # The probabilities that this gives, priced exactly.
    weights = [
        np.exp(-0.7 * 3 * absolute_losses(each)(net) / (2 * call["sensitivity"])) for each in (data, other)
    ]
    pair = [w / w.sum() for w in weights]
    assert max(exact_epsilon(*pair), exact_epsilon(*reversed(pair))) <= 0.7
