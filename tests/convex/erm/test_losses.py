import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.special import expit

from sparsedp.convex.erm.losses import LogisticLoss, LossBounds, SmoothedHingeLoss, SoftmaxLoss, SquaredLoss

ONE_MARGIN = [
    LogisticLoss(1.0),
    LogisticLoss(0.5),
    LogisticLoss(0.2),
    SmoothedHingeLoss(0.5),
    SmoothedHingeLoss(0.1),
]
JOINT = [SoftmaxLoss(2), SoftmaxLoss(4), SoftmaxLoss(4, margin=1.0, smoothing=0.5)]
ALL = [*ONE_MARGIN, *JOINT, SquaredLoss(39.0, 1.0)]
reals = st.floats(-15, 15)


def some_targets(loss, generator, n):
    if isinstance(loss, SoftmaxLoss):
        return generator.integers(0, loss.classes, n).astype(float)
    return generator.choice([-1.0, 1.0], n)


@pytest.mark.parametrize("loss", ALL, ids=repr)
@settings(deadline=None)
@given(seed=st.integers(0, 10**6))
def test_derivatives_convexity_and_bounds(loss, seed):
    generator = np.random.default_rng(seed)
    n, k, h = 6, loss.outputs, 1e-6
    margins = generator.standard_normal((n, k)) * 4.0
    targets = some_targets(loss, generator, n)
    change = generator.standard_normal((n, k))
    slopes, bounds = loss.slopes(margins, targets), loss.bounds
    ahead, behind = (loss.value(margins + step * change, targets) for step in (h, -h))
    assert np.allclose((ahead - behind) / (2 * h), (slopes * change).sum(axis=1), atol=1e-6)
    other = margins + 3.0 * change
    rise = loss.value(other, targets) - loss.value(margins, targets) - 3.0 * (slopes * change).sum(axis=1)
    assert np.all(rise >= -1e-9)  # convex
    assert np.all(np.linalg.norm(slopes, axis=1) <= bounds.slope_l2 + 1e-12)
    assert np.all(np.abs(slopes).sum(axis=1) <= bounds.slope_l1 + 1e-12)
    bent = loss.bend(margins, targets, change)
    assert np.all((bent * change).sum(axis=1) >= -1e-12)
    assert np.all(np.linalg.norm(bent, axis=1) <= bounds.curvature * np.linalg.norm(change, axis=1) + 1e-12)
    columns = [loss.bend(margins, targets, np.tile(unit, (n, 1)))[:, i] for i, unit in enumerate(np.eye(k))]
    assert np.all(sum(columns) <= bounds.curvature_trace + 1e-12)


@pytest.mark.parametrize(
    "loss", [LogisticLoss(1.0), LogisticLoss(0.5), SmoothedHingeLoss(0.3), *JOINT], ids=repr
)
def test_second_derivatives(loss):
    generator = np.random.default_rng(1)
    margins = generator.standard_normal((50, loss.outputs)) * 2.0
    targets, change = some_targets(loss, generator, 50), generator.standard_normal((50, loss.outputs))
    if isinstance(loss, LogisticLoss):  # not across the bend
        margins[np.abs(margins) < 0.01] = 0.5
    h = 1e-6
    difference = (loss.slopes(margins + h * change, targets) - loss.slopes(margins - h * change, targets)) / (
        2 * h
    )
    assert np.allclose(difference, loss.bend(margins, targets, change), atol=1e-6)


def test_slope_corners():
    """Slopes of one target lie in the hull of zero and the corners: on one side, or p - e_y with p a simplex."""
    margins = np.linspace(-30, 30, 101)[:, None]
    for loss in ONE_MARGIN:
        slopes = loss.slopes(margins, np.ones(101))[:, 0]
        assert slopes.max() <= 0.0
        assert slopes.min() == pytest.approx(-loss.bounds.slope_l2)
    loss = SoftmaxLoss(4)
    slopes = loss.slopes(np.random.default_rng(0).standard_normal((200, 4)) * 9, np.zeros(200))
    assert np.allclose(slopes.sum(axis=1), 0.0)
    assert np.all(slopes[:, 1:] >= 0.0)
    assert loss.bounds.slope_corners == loss.bounds.curvature_rank == 3


def test_known_values():
    margins, targets = np.array([[0.7]]), np.array([-1.0])
    assert LogisticLoss(1.0).value(margins, targets)[0] == pytest.approx(math.log1p(math.exp(0.7)))
    assert LogisticLoss(0.5).value(margins, targets)[0] == pytest.approx(math.log(2) + 0.35)  # a line there
    assert LogisticLoss(0.5).value(margins, -targets)[0] == pytest.approx(math.log1p(math.exp(-0.7)))
    assert SmoothedHingeLoss(1e-3).value(margins, targets)[0] == pytest.approx(1.7)
    assert SmoothedHingeLoss(1e-3).value(np.array([[1.7]]), -targets)[0] == pytest.approx(0.0, abs=1e-9)
    assert SquaredLoss(8.0, 1.0).value(margins, targets)[0] == pytest.approx(0.5 * 1.7**2)
    three = np.array([[0.3, -0.2, 0.5]])
    assert SoftmaxLoss(3).value(three, np.array([1.0]))[0] == pytest.approx(
        math.log(math.exp(0.3) + math.exp(-0.2) + math.exp(0.5)) + 0.2
    )
    crammer_singer = SoftmaxLoss(3, margin=1.0, smoothing=1e-3)
    assert crammer_singer.value(three, np.array([1.0]))[0] == pytest.approx(1.7, abs=1e-2)


@settings(deadline=None)
@given(reals)
def test_probabilities(margin):
    assert LogisticLoss(1.0).probability(np.array([margin]))[0] == pytest.approx(expit(margin))
    for steepest in (0.2, 0.5, 1.0):
        loss = LogisticLoss(steepest)
        p = loss.probability(np.array([margin, -margin]))
        assert p.sum() == pytest.approx(1.0)
        assert (p[0] > 0.5) == (margin > 0) or abs(p[0] - 0.5) < 1e-6
        # At this chance of target 1 the expected slope is zero: the margin is the best one.
        at = np.array([[margin]])
        slope = p[0] * loss.slopes(at, np.ones(1)) + (1 - p[0]) * loss.slopes(at, -np.ones(1))
        assert abs(slope[0, 0]) < 1e-12


@settings(deadline=None)
@given(arrays(np.float64, (3, 4), elements=st.floats(-1e4, 1e4)))
def test_no_overflow(margins):
    for loss in JOINT[1:]:
        assert np.isfinite(loss.value(margins, np.array([0.0, 1.0, 3.0]))).all()
    for loss in ONE_MARGIN:
        assert np.isfinite(loss.value(margins[:, :1], np.ones(3))).all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LogisticLoss(0.0), "steepest must be positive"),
        (lambda: LogisticLoss(1.5), "steepest must lie in"),
        (lambda: SmoothedHingeLoss(-1.0), "smoothing must be positive"),
        (lambda: SoftmaxLoss(1), "classes must be at least 2"),
    ],
)
def test_bad_parameters(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("loss", "good", "bad"),
    [
        (LogisticLoss(), [-1.0, 1.0], [0.0, 0.5, 2.0, -30.0, math.nan, math.inf]),
        (SmoothedHingeLoss(), [-1.0, 1.0], [0.0, 1 + 1e-15, 30.0, math.nan]),
        (SoftmaxLoss(3), [0.0, 1.0, 2.0], [-1.0, 3.0, 0.5, math.nan, math.inf]),
        (SquaredLoss(1.0, 2.0), [-2.0, 0.3, 2.0], [2.1, -1e9, math.nan, math.inf]),
    ],
    ids=repr,
)
def test_each_loss_knows_its_targets(loss, good, bad):
    loss.check_targets(np.array([*good, loss.empty_target]))
    for target in bad:
        with pytest.raises(ValueError, match=r"^targets must"):
            loss.check_targets(np.array([*good, target]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"slope_l1": 0.9}, "slope_l1 must be at least slope_l2 = 1"),
        ({"slope_l2": 0.0}, "slope_l2 must be positive"),
        ({"curvature_trace": 0.2}, "curvature_trace must be at least curvature = 0.25"),
        ({"curvature_trace": 0.6}, "curvature_rank \\* curvature must be at least curvature_trace"),
        ({"curvature_rank": 0}, "curvature_rank must be at least 1"),
        ({"slope_corners": 0}, "slope_corners must be at least 1"),
        ({"level_curvature": 0.3}, "curvature must be at least level_curvature"),
        ({"margin_bound": 0.0}, "margin_bound must be positive"),
    ],
)
def test_bounds_that_no_loss_can_have_are_refused(change, message):
    good = {"slope_l2": 1.0, "slope_l1": 1.0, "curvature": 0.25, "curvature_trace": 0.25}
    LossBounds(**good)
    with pytest.raises(ValueError, match=message):
        LossBounds(**{**good, **change})
