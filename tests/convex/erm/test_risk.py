import math

import numpy as np
import pytest
from scipy import sparse

from sparsedp.convex import FunctionRisk, LinearRisk, LogisticLoss, Regularity, SoftmaxLoss, SquaredLoss
from sparsedp.convex.clip import clip_rows
from sparsedp.convex.erm import risk as risk_module


def linear(loss, n=30, d=5, seed=0, as_sparse=True):
    generator = np.random.default_rng(seed)
    rows = clip_rows(generator.standard_normal((n, d)), l2=1.0)
    k = loss.outputs
    targets = generator.integers(0, k, n).astype(float) if k > 1 else generator.choice([-1.0, 1.0], n)
    return LinearRisk(sparse.csr_array(rows) if as_sparse else rows, targets, loss, 1.0, math.sqrt(d))


def test_regularity_of_sparse_losses():
    regularity = Regularity.sparse(2.0, 9, smoothness=3.0)
    assert regularity == Regularity(2.0, 6.0, 3.0, math.sqrt(18) * 3.0)
    assert Regularity.sparse(2.0, 4).smoothness is None


@pytest.mark.parametrize("loss", [LogisticLoss(1.0), LogisticLoss(), SoftmaxLoss(3)], ids=repr)
def test_regularity_of_linear_models_holds_for_every_example(loss):
    """l2 and l1 norms of gradients, and of their changes, at random pairs of points, example by example."""
    risk = linear(loss, n=1, d=8)
    generator = np.random.default_rng(2)
    regularity = risk.regularity
    for seed in range(200):
        one = linear(loss, n=1, d=8, seed=seed)
        x, y = generator.standard_normal((2, one.dimension)) * generator.choice([0.1, 1.0, 10.0])
        at_x, at_y = one.value_and_gradient(x)[1], one.value_and_gradient(y)[1]
        apart = np.linalg.norm(x - y)
        assert np.linalg.norm(at_x) <= regularity.lipschitz + 1e-12
        assert np.abs(at_x).sum() <= regularity.lipschitz_l1 + 1e-12
        assert np.linalg.norm(at_x - at_y) <= regularity.smoothness * apart + 1e-12
        assert np.abs(at_x - at_y).sum() <= regularity.smoothness_l1 * apart + 1e-12


@pytest.mark.parametrize("factor", [0.25, 8.0])
@pytest.mark.parametrize("loss", [LogisticLoss(), SoftmaxLoss(3), SquaredLoss(3.0, 1.0)], ids=repr)
def test_regularity_follows_the_length_of_rows(loss, factor):
    """Gradients grow with the rows, their changes with the square, and the ball of given margins shrinks."""
    risk = linear(loss, n=1)
    longer = LinearRisk(risk.rows * factor, risk.targets, loss, factor, factor * risk.row_l1)
    unit, found = risk.regularity, longer.regularity
    assert (found.lipschitz, found.lipschitz_l1) == pytest.approx(
        (factor * unit.lipschitz, factor * unit.lipschitz_l1)
    )
    assert (found.smoothness, found.smoothness_l1) == pytest.approx(
        (factor**2 * unit.smoothness, factor**2 * unit.smoothness_l1)
    )
    assert found.radius == pytest.approx(unit.radius / factor)


@pytest.mark.parametrize("as_sparse", [True, False])
@pytest.mark.parametrize("loss", [LogisticLoss(1.0), SoftmaxLoss(3)], ids=repr)
def test_gradient_and_hessian(loss, as_sparse):
    risk = linear(loss, as_sparse=as_sparse)
    generator = np.random.default_rng(3)
    x, v = generator.standard_normal((2, risk.dimension))
    h = 1e-6
    (up, gradient_up), (down, gradient_down) = (risk.value_and_gradient(x + s * v) for s in (h, -h))
    assert (up - down) / (2 * h) == pytest.approx(risk.value_and_gradient(x)[1] @ v, abs=1e-7)
    assert np.allclose((gradient_up - gradient_down) / (2 * h), risk.hessian_at(x)(v), atol=1e-7)


def test_rows_that_break_the_promise_are_refused():
    rows = np.array([[0.9, 0.9]])
    risk = LinearRisk(rows, np.ones(1), LogisticLoss(), 1.0, 2.0)
    with pytest.raises(ValueError, match="rows must have l2 norms of at most 1"):
        risk.verify(pure=False)
    risk = LinearRisk(rows, np.ones(1), LogisticLoss(), 1.3, 1.5)
    risk.verify(pure=False)
    with pytest.raises(ValueError, match=r"rows must have l1 norms of at most 1\.5"):
        risk.verify(pure=True)


@pytest.mark.parametrize("pure", [False, True])
def test_rows_that_are_too_long_in_l2_alone_are_refused(pure):
    """The smoothness of a loss, and with it the l1 sensitivity, rests on l2 norms in pure DP too."""
    rows = np.array([[2.0, 0.0, 0.0], [0.5, 0.5, 0.0]])
    risk = LinearRisk(rows, np.array([1.0, -1.0]), LogisticLoss(), row_l2=1.0, row_l1=3.0)
    with pytest.raises(ValueError, match="l2 norms of at most 1"):
        risk.verify(pure=pure)


@pytest.mark.parametrize("row_l2", [0.25, 1.0, 8.0])
def test_regularity_of_the_squared_loss_holds_on_its_ball_and_not_beyond(row_l2):
    """The longest row, along the parameters, at the border of the ball: margin and slope are just those promised."""
    risk = LinearRisk(np.array([[row_l2, 0.0]]), np.array([-1.5]), SquaredLoss(3.0, 1.5), row_l2, row_l2)
    promised = risk.regularity
    border = np.array([promised.radius, 0.0])
    assert risk.margins(border).item() == pytest.approx(3.0)
    assert np.linalg.norm(risk.value_and_gradient(border)[1]) == pytest.approx(promised.lipschitz)
    assert np.linalg.norm(risk.value_and_gradient(1.01 * border)[1]) > promised.lipschitz


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array])
def test_an_example_that_is_not_finite_has_no_gradient(form):
    """One NaN would make every gradient NaN, and so tell that it is there; a refusal would tell the same."""
    rows = np.array([[0.5, 0.1], [0.2, math.nan], [math.inf, 0.0], [0.3, 0.3]])
    targets = np.array([1.0, -1.0, 1.0, math.nan])
    risk = LinearRisk(form(rows), targets, LogisticLoss(), 1.0, 1.0)
    risk.verify(pure=True)
    alone = LinearRisk(rows[:1], targets[:1], LogisticLoss(), 1.0, 1.0)
    for x in (np.zeros(2), np.array([3.0, -2.0])):
        assert np.allclose(risk.value_and_gradient(x)[1], alone.value_and_gradient(x)[1] / 4)
        assert np.allclose(risk.hessian_at(x)(np.ones(2)), alone.hessian_at(x)(np.ones(2)) / 4)


def test_long_sums_are_added_by_block(monkeypatch):
    risk = linear(SoftmaxLoss(3), n=50)
    x = np.random.default_rng(4).standard_normal(risk.dimension)
    whole = risk.value_and_gradient(x)[1]
    monkeypatch.setattr(risk_module, "SUM_BLOCK", 16)
    assert np.allclose(risk.value_and_gradient(x)[1], whole, rtol=1e-13)
    monkeypatch.setattr(risk_module, "MOST_ENTRIES", 10)
    with pytest.raises(ValueError, match="rows must hold at most 10 numbers"):
        linear(SoftmaxLoss(3))


def test_functions_are_checked():
    regularity = Regularity.sparse(1.0, 2)
    with pytest.raises(ValueError, match=r"gradient must have shape \(3,\)"):
        FunctionRisk(lambda x: (0.0, x[:2]), 5, 3, regularity).value_and_gradient(np.zeros(3))
    with pytest.raises(ValueError, match="NaN"):
        FunctionRisk(lambda x: (math.nan, x), 5, 3, regularity).value_and_gradient(np.zeros(3))
    with pytest.raises(ValueError, match="n must be at least 1"):
        FunctionRisk(lambda x: (0.0, x), 0, 3, regularity)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Regularity.sparse(1.0, 0), "sparsity must be at least 1"),
        (lambda: Regularity.sparse(math.inf, 2), "lipschitz must be finite"),
        (lambda: Regularity.sparse(1.0, 2, smoothness=-1.0), "smoothness must be positive"),
        (lambda: Regularity(1.0, 1.0, smoothness=1.0), "smoothness and smoothness_l1"),
        (lambda: Regularity(1.0, 0.1), "lipschitz_l1 must be at least lipschitz = 1"),
        (lambda: Regularity(1.0, math.nan), "lipschitz_l1 must be a number"),
        (lambda: Regularity(1.0, 1.0, 1.0, 0.01), "smoothness_l1 must be at least smoothness = 1"),
        (lambda: Regularity(1.0, 1.0, -1.0, -1.0), "smoothness must be positive"),
        (lambda: Regularity(1.0, 1.0, radius=0.0), "radius must be positive"),
        (
            lambda: LinearRisk(np.ones((2, 2)), np.ones(2), LogisticLoss(), 1.0, 0.5),
            "row_l1 must be at least row_l2",
        ),
        (
            lambda: LinearRisk(np.ones((2, 2)), np.ones(2), LogisticLoss(), -1.0, 1.0),
            "row_l2 must be positive",
        ),
        (
            lambda: LinearRisk(np.ones((2, 2)), np.ones(3), LogisticLoss(), 2.0, 2.0),
            "targets must be one per row",
        ),
        (
            lambda: LinearRisk(np.ones((2, 2)), np.array([1.0, 30.0]), LogisticLoss(), 2.0, 2.0),
            "exactly -1 or 1",
        ),
    ],
)
def test_bad_regularity(make, message):
    with pytest.raises(ValueError, match=message):
        make()
