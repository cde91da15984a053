"""Losses of a linear model: functions of the margins M = X W and the target, with the bounds that proofs use.

A gradient of an example is ``slope (x) x`` (outer product), so bounds on slopes and rows bound gradients.
One margin per example (targets -1 and 1, or numbers) or one per class (targets 0 .. K - 1).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
from scipy.special import expit, logsumexp

from sparsedp.core.arrays import F64
from sparsedp.core.validation import check_count, check_number, check_positive


@dataclass(frozen=True)
class LossBounds:
    """What holds at all margins and targets.

    ``slope_l2`` and ``slope_l1`` bound the slopes of one example; all slopes of one target lie in the hull of
    zero and ``slope_corners`` other points. ``curvature``, ``curvature_trace`` and ``curvature_rank`` bound
    the largest eigenvalue, the trace and the rank of the second derivative; ``level_curvature`` is the largest
    eigenvalue where no class is ahead, if that is smaller. All of it holds for margins of norm ``margin_bound``
    at most; infinite where it holds everywhere.

    Noise is calibrated to these numbers, so a set of them that no loss can have is refused.
    """

    slope_l2: float
    slope_l1: float
    curvature: float
    curvature_trace: float
    slope_corners: int = 1
    curvature_rank: int = 1
    level_curvature: float | None = None
    margin_bound: float = math.inf

    def __post_init__(self) -> None:
        check_positive("slope_l2", self.slope_l2)
        check_positive("curvature", self.curvature)
        check_count("slope_corners", self.slope_corners)
        rank = check_count("curvature_rank", self.curvature_rank)
        check_at_least("slope_l1", self.slope_l1, "slope_l2", self.slope_l2)
        check_at_least("curvature_trace", self.curvature_trace, "curvature", self.curvature)
        check_at_least(
            "curvature_rank * curvature", rank * self.curvature, "curvature_trace", self.curvature_trace
        )
        if self.level_curvature is not None:
            check_positive("level_curvature", self.level_curvature)
            check_at_least("curvature", self.curvature, "level_curvature", self.level_curvature)
        if not check_number("margin_bound", self.margin_bound) > 0.0:
            raise ValueError(f"margin_bound must be positive, got {self.margin_bound}")


def check_at_least(name: str, value: float, least_name: str, least: float) -> float:
    """A finite number no smaller than another, but for rounding."""
    if not check_positive(name, value) >= least * (1.0 - 1e-12):
        raise ValueError(f"{name} must be at least {least_name} = {least:g}, got {value:g}")
    return value


class MarginLoss(Protocol):
    """A convex loss of the margins, twice differentiable almost everywhere."""

    @property
    def empty_target(self) -> float:
        """A target that ``check_targets`` passes, for examples that count as zero."""
        ...

    @property
    def outputs(self) -> int:
        """How many margins an example has."""
        ...

    @property
    def bounds(self) -> LossBounds:
        """Its bounds."""
        ...

    def check_targets(self, targets: F64) -> None:
        """Refuse targets for which the bounds do not hold."""
        ...

    def value(self, margins: F64, targets: F64) -> F64:
        """The loss of each example."""
        ...

    def slopes(self, margins: F64, targets: F64) -> F64:
        """The first derivatives, of the shape of ``margins``."""
        ...

    def bend(self, margins: F64, targets: F64, change: F64) -> F64:
        """The second derivative times a change of the margins."""
        ...


@dataclass(frozen=True)
class LogisticLoss:
    """``ln(1 + e^-m)`` with m = target * margin, continued as a line where its slope would pass ``steepest``.

    At ``steepest = 1`` this is the logistic loss. At 1/2 it is logistic for examples on their right side and
    a line for those on the wrong one, as if gradients had been clipped, but convex. It halves the
    sensitivity, and noise is what private regression suffers from.
    """

    steepest: float = 0.5
    outputs: ClassVar[int] = 1
    empty_target: ClassVar[float] = 1.0

    def __post_init__(self) -> None:
        if check_positive("steepest", self.steepest) > 1:
            raise ValueError(f"steepest must lie in (0, 1], got {self.steepest}")

    @property
    def bounds(self) -> LossBounds:
        """The curvature is p (1 - p), at p = 1/2 unless that is cut off."""
        p = min(self.steepest, 0.5)
        return LossBounds(self.steepest, self.steepest, p * (1 - p), p * (1 - p))

    @property
    def _bend_point(self) -> float:
        """The margin at which the slope is ``steepest``."""
        return math.log(1 / self.steepest - 1) if self.steepest < 1 else -math.inf

    def check_targets(self, targets: F64) -> None:
        """Exactly -1 or 1: any other number would scale the slopes."""
        _check_signs(targets)

    def value(self, margins: F64, targets: F64) -> F64:
        """Logistic to the right of the bend, a line to the left."""
        m = targets * margins[:, 0]
        curved = np.maximum(m, self._bend_point)
        return np.asarray(np.logaddexp(0.0, -curved) + self.steepest * (curved - m))

    def slopes(self, margins: F64, targets: F64) -> F64:
        """-target min(p, steepest), p the probability of the other class."""
        p = expit(-targets * margins[:, 0])
        return np.asarray((-targets * np.minimum(p, self.steepest))[:, None])

    def bend(self, margins: F64, targets: F64, change: F64) -> F64:
        """p (1 - p) where curved."""
        m = targets * margins[:, 0]
        curve = np.where(m > self._bend_point, expit(m) * expit(-m), 0.0)
        return np.asarray(curve[:, None] * change)

    def probability(self, margins: F64) -> F64:
        """The probability of target 1 for which this margin is optimal: the slopes of both targets cancel."""
        against = np.minimum(expit(-margins), self.steepest)
        towards = np.minimum(expit(margins), self.steepest)
        return np.asarray(towards / (against + towards))


@dataclass(frozen=True)
class SmoothedHingeLoss:
    """``h ln(1 + e^((1 - m)/h))``, m = target * margin: a hinge with its corner rounded over about h."""

    smoothing: float = 0.5
    outputs: ClassVar[int] = 1
    empty_target: ClassVar[float] = 1.0

    def __post_init__(self) -> None:
        check_positive("smoothing", self.smoothing)

    @property
    def bounds(self) -> LossBounds:
        """The slope of the hinge, and the curvature at its corner."""
        curvature = 1 / (4 * self.smoothing)
        return LossBounds(1.0, 1.0, curvature, curvature)

    def check_targets(self, targets: F64) -> None:
        """Exactly -1 or 1: any other number would scale the slopes."""
        _check_signs(targets)

    def value(self, margins: F64, targets: F64) -> F64:
        """One rounded hinge an example."""
        return np.asarray(self.smoothing * np.logaddexp(0.0, self._lack(margins, targets)))

    def slopes(self, margins: F64, targets: F64) -> F64:
        """-target times how far below the corner."""
        return np.asarray((-targets * expit(self._lack(margins, targets)))[:, None])

    def bend(self, margins: F64, targets: F64, change: F64) -> F64:
        """p (1 - p) / h."""
        lack = self._lack(margins, targets)
        return np.asarray((expit(lack) * expit(-lack) / self.smoothing)[:, None] * change)

    def _lack(self, margins: F64, targets: F64) -> F64:
        return np.asarray((1.0 - targets * margins[:, 0]) / self.smoothing)


@dataclass(frozen=True)
class SquaredLoss:
    """``(margin - target)^2 / 2`` for targets within ``target_bound``, and margins within ``margin_bound``.

    Its slope is bounded only on bounded parameters: fitting with it needs a bounded domain.
    """

    margin_bound: float
    target_bound: float
    outputs: ClassVar[int] = 1
    empty_target: ClassVar[float] = 0.0

    def __post_init__(self) -> None:
        check_positive("margin_bound", self.margin_bound)
        check_positive("target_bound", self.target_bound)

    @property
    def bounds(self) -> LossBounds:
        """The slope is the residual."""
        reach = self.margin_bound + self.target_bound
        return LossBounds(reach, reach, 1.0, 1.0, slope_corners=2, margin_bound=self.margin_bound)

    def check_targets(self, targets: F64) -> None:
        """Within ``target_bound``."""
        if not (np.abs(targets) <= self.target_bound).all():
            raise ValueError(
                f"targets must lie within target_bound = {self.target_bound:g}: cut them to it with numpy.clip"
            )

    def value(self, margins: F64, targets: F64) -> F64:
        """Half the squared residual."""
        return np.asarray(0.5 * (margins[:, 0] - targets) ** 2)

    def slopes(self, margins: F64, targets: F64) -> F64:
        """The residual."""
        return np.asarray((margins[:, 0] - targets)[:, None])

    def bend(self, margins: F64, targets: F64, change: F64) -> F64:
        """Constant."""
        return change


@dataclass(frozen=True)
class SoftmaxLoss:
    """``h ln(sum over k of e^((M_k + margin [k != target]) / h)) - M_target`` over K classes.

    With ``margin = 0`` and ``h = 1``: multinomial logistic. With ``margin = 1``: the multi-class hinge of
    Crammer and Singer with its corners rounded. One joint loss: the slopes of an example, a probability
    vector less a unit vector, have l2 norm sqrt(2) for any K, where one-vs-rest has sqrt(K).
    """

    classes: int
    margin: float = 0.0
    smoothing: float = 1.0
    empty_target: ClassVar[float] = 0.0

    def __post_init__(self) -> None:
        check_count("classes", self.classes, minimum=2)
        check_positive("smoothing", self.smoothing)

    @property
    def outputs(self) -> int:
        """One margin a class."""
        return self.classes

    @property
    def bounds(self) -> LossBounds:
        """Slopes lie between unit vectors; diag(p) - p p^T has eigenvalues up to 1/2, trace 1 - |p|^2."""
        k, h = self.classes, self.smoothing
        return LossBounds(
            slope_l2=math.sqrt(2),
            slope_l1=2.0,
            curvature=0.5 / h,
            curvature_trace=(1 - 1 / k) / h,
            slope_corners=k - 1,
            curvature_rank=k - 1,
            level_curvature=1 / (k * h),
        )

    def check_targets(self, targets: F64) -> None:
        """Whole numbers 0 .. classes - 1."""
        if not ((targets >= 0) & (targets < self.classes) & (targets == np.floor(targets))).all():
            raise ValueError(
                f"targets must be whole numbers from 0 to {self.classes - 1}: number the classes"
            )

    def value(self, margins: F64, targets: F64) -> F64:
        """One loss an example."""
        target_margins = np.take_along_axis(margins, targets[:, None].astype(np.int64), axis=1)[:, 0]
        return np.asarray(self.smoothing * logsumexp(self._levels(margins, targets), axis=1) - target_margins)

    def slopes(self, margins: F64, targets: F64) -> F64:
        """Probabilities less the indicator of the target."""
        slopes = self._probabilities(margins, targets)
        slopes[np.arange(targets.size), targets.astype(np.int64)] -= 1.0
        return slopes

    def bend(self, margins: F64, targets: F64, change: F64) -> F64:
        """(diag(p) - p p^T) / h."""
        p = self._probabilities(margins, targets)
        return np.asarray(p * (change - (p * change).sum(axis=1, keepdims=True)) / self.smoothing)

    def _levels(self, margins: F64, targets: F64) -> F64:
        levels = (margins + self.margin) / self.smoothing
        levels[np.arange(targets.size), targets.astype(np.int64)] -= self.margin / self.smoothing
        return levels

    def _probabilities(self, margins: F64, targets: F64) -> F64:
        levels = self._levels(margins, targets)
        levels -= levels.max(axis=1, keepdims=True)
        np.exp(levels, out=levels)
        levels /= levels.sum(axis=1, keepdims=True)
        return levels


def _check_signs(targets: F64) -> None:
    if not (np.abs(targets) == 1.0).all():
        raise ValueError("targets must be exactly -1 or 1: other numbers scale the slopes")
