import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import linprog, minimize

from sparsedp.mechanisms import Ball, Box, Simplex, project_l1_ball, project_linf

vectors = st.integers(1, 7).flatmap(lambda d: arrays(np.float64, d, elements=st.floats(-10, 10)))
radii = st.floats(0.01, 20)


@given(vectors, radii)
def test_l1_projection_is_inside_and_satisfies_the_optimality_condition(x, radius):
    z = project_l1_ball(x, radius)
    assert np.abs(z).sum() <= radius * (1 + 1e-9) + 1e-12
    # z is the projection iff <x - z, v - z> <= 0 at every vertex v = +- radius e_i.
    assert radius * np.abs(x - z).max() - (x - z) @ z <= 1e-7


def test_l1_projection_by_hand():
    assert np.allclose(project_l1_ball([3.0, -1.0, 0.5], 2.0), [2.0, 0.0, 0.0])
    assert np.allclose(project_l1_ball([3.0, -2.0], 3.0), [2.0, -1.0])
    assert np.array_equal(project_l1_ball([0.5, -0.5], 2.0), [0.5, -0.5])
    assert np.array_equal(project_l1_ball([1.0, -5.0], 0.0), [0.0, 0.0])
    assert project_l1_ball([], 1.0).size == 0


@given(vectors, radii)
def test_l1_projection_never_increases_a_distance(x, radius):
    y = x[::-1].copy()
    moved = np.linalg.norm(project_l1_ball(x, radius) - project_l1_ball(y, radius))
    assert moved <= np.linalg.norm(x - y) + 1e-9


def simplex_distance(x, total):
    """The l_inf distance to the simplex by linear programming: minimise t over (y, t)."""
    d = x.size
    ones = np.ones((d, 1))
    constraints = np.block([[np.eye(d), -ones], [-np.eye(d), -ones]])
    solution = linprog(
        np.append(np.zeros(d), 1.0),
        A_ub=constraints,
        b_ub=np.concatenate([x, -x]),
        A_eq=np.append(np.ones(d), 0.0)[None, :],
        b_eq=[total],
        bounds=[(0, None)] * (d + 1),
    )
    return solution.fun


@given(vectors, st.floats(0.1, 5))
@settings(deadline=None, max_examples=60)
def test_linf_onto_the_simplex(x, total):
    y = project_linf(x, Simplex(total))
    assert y.min() >= 0
    assert y.sum() == pytest.approx(total)
    assert np.abs(y - x).max() == pytest.approx(simplex_distance(x, total), abs=1e-7)


@given(vectors, radii)
def test_linf_onto_the_ball(x, radius):
    y = project_linf(x, Ball(radius))
    norm, moved = np.linalg.norm(x), np.abs(y - x).max()
    assert np.linalg.norm(y) <= radius * (1 + 1e-9)
    if norm <= radius:
        assert np.array_equal(x, y)
    elif norm > radius * (1 + 1e-9):  # nearer than that rounding decides
        # Any smaller move leaves even the shortest vector within reach outside the ball.
        closer = np.maximum(np.abs(x) - 0.999 * moved, 0.0)
        assert np.linalg.norm(closer) > radius


def test_linf_onto_the_ball_moves_less_than_the_euclidean_projection():
    x = np.array([10.0] + [1.0] * 20)
    y = project_linf(x, Ball(5.0))
    assert np.abs(y - x).max() < np.abs(5.0 * x / np.linalg.norm(x) - x).max()
    # And by a general solver: minimise t subject to |y - x| <= t, ||y|| <= 5.
    best = minimize(
        lambda v: v[-1],
        np.append(np.zeros(21), 10.0),
        constraints=[
            {"type": "ineq", "fun": lambda v: v[-1] - (v[:-1] - x)},
            {"type": "ineq", "fun": lambda v: v[-1] + (v[:-1] - x)},
            {"type": "ineq", "fun": lambda v: 25.0 - v[:-1] @ v[:-1]},
        ],
    )
    assert np.abs(y - x).max() == pytest.approx(best.fun, rel=1e-5)


def test_a_ball_elsewhere():
    center = np.array([5.0, 5.0])
    y = project_linf([9.0, 5.0], Ball(1.0, center))
    assert np.allclose(y, [6.0, 5.0])


@given(vectors)
def test_linf_onto_a_box(x):
    y = project_linf(x, Box(-1.0, 2.0))
    assert y.min() >= -1
    assert y.max() <= 2
    assert np.abs(y - x).max() == pytest.approx(max(0.0, -1.0 - x.min(), x.max() - 2.0))


def test_a_box_with_a_side_for_each_coordinate():
    assert np.allclose(
        project_linf([5.0, -5.0], Box(np.array([0.0, -1.0]), np.array([1.0, 9.0]))), [1.0, -1.0]
    )


def test_large_and_ill_scaled_vectors():
    rng = np.random.default_rng(0)
    x = rng.standard_normal(100_000) * 10.0 ** rng.uniform(-8, 8, 100_000)
    y = project_linf(x, Ball(1.0))
    assert np.linalg.norm(y) <= 1.0 + 1e-6
    assert np.abs(project_l1_ball(x, 1.0)).sum() <= 1.0 + 1e-6


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: project_l1_ball([1.0], -1.0), "radius"),
        (lambda: project_l1_ball([np.nan], 1.0), "x"),
        (lambda: project_l1_ball([[1.0]], 1.0), "x"),
        (lambda: Ball(0.0), "radius"),
        (lambda: Ball(1.0, np.array([np.inf])), "center"),
        (lambda: Box(1.0, 0.0), "low"),
        (lambda: Box(np.nan, 0.0), "low"),
        (lambda: Simplex(-1.0), "total"),
        (lambda: project_linf([np.inf], Box(0.0, 1.0)), "x"),
        (lambda: project_linf([], Simplex()), "x"),
    ],
)
def test_bad_input(make, named):
    with pytest.raises(ValueError, match=f"^{named} "):
        make()
