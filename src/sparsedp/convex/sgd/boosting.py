"""Boosting: several runs of bias-reduced SGD, of which one is chosen privately (SGO Algorithm 7).

One run succeeds with constant probability only, for its gradients have heavy tails. K runs and a private
choice make failure exponentially rare. There are three ways to spend privacy on it:

- `laplace`: K runs at epsilon/(K+1) each and report-noisy-max at the same, with twice the paper's noise;
- `permute-and-flip`: the same split, and a choice with less regret;
- `repetition`: a Poisson number of runs, each with its noisy score, of which only the best is
  released (Papernot and Steinke 2022). Its price hardly grows with the number of runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy import optimize

from sparsedp.accounting import PrivacyStatement, RepeatAndSelectDpEvent, ZCDpEvent
from sparsedp.accounting.renyi import renyi_epsilon
from sparsedp.accounting.statement import ADD_OR_REMOVE_ONE
from sparsedp.convex.sgd.batch_schedule import BatchSchedule, pld_schedule, repetition_schedule
from sparsedp.convex.sgd.bias_reduced_sgd import BiasReducedSGD
from sparsedp.convex.sgd.gradient_sums import SAFE, clipped_rows, combine, row_sum
from sparsedp.convex.sgd.protocol import SparseLoss, check_start
from sparsedp.core.arrays import F64, I64
from sparsedp.core.counts import SparseCounts
from sparsedp.core.validation import check_count, check_delta, check_epsilon, check_positive
from sparsedp.mechanisms import gaussian, permute_and_flip, report_noisy_max
from sparsedp.randomness import NoiseSource, Stream

Selection = Literal["repetition", "laplace", "permute-and-flip"]

_CHUNK = 8192
_SCORE_SHARE = 0.125
"""The part of a repeated run's budget that goes into its score."""


@dataclass(frozen=True)
class Boosted:
    """The chosen run's point, how many runs there were, and one guarantee for all of it.

    With `repetition` the number of runs is random and may be 0; the point is then the start. It is a
    diagnostic, not released: keep it with the data.
    """

    x: F64
    runs: int
    statement: PrivacyStatement


def boost(
    method: BiasReducedSGD,
    loss: SparseLoss,
    start: ArrayLike,
    *,
    size: int,
    epsilon: float,
    delta: float,
    source: NoiseSource,
    loss_range: float | None = None,
    failure: float = 0.05,
    selection: Selection = "repetition",
    max_steps: int = 100_000,
) -> Boosted:
    """Run `method` often enough that all fail with probability at most `failure`; choose one privately.

    Candidates are compared by `F_S(x) - F_S(start)` (convex; `loss_range` B bounds `|f(x, z) - f(y, z)|`)
    or by the norm of the gradient of F_S (nonconvex). `size` is the public number of examples.

    Guarantee: (epsilon, delta)-DP, add-or-remove-one, unit: example. Released: the chosen point.
    Sensitivity of a score: each example adds a number clipped to [-B, B] (a vector clipped to norm L), over
    `size`: one example moves a score by at most B/size (L/size) either way. The uncentred F_S of the paper
    has no bound.
    Proof: K runs at (epsilon, delta)/(K+1) and an epsilon/(K+1) choice compose; for the repetition, theorem
    6 of Papernot and Steinke on the run and its score together.
    """
    epsilon, delta = check_epsilon(epsilon), check_delta(delta)
    if not 0.0 < check_positive("failure", failure) < 0.5:
        raise ValueError(f"failure must lie below 1/2, got {failure}")
    if selection not in _METHODS:
        raise ValueError(f"selection must be one of {', '.join(_METHODS)}, got {selection!r}")
    task = _Task(
        method,
        loss,
        check_start(start, loss),
        check_count("size", size, minimum=2),
        _bound(method, loss_range),
    )
    x, runs = _METHODS[selection](task, _Budget(epsilon, delta, failure, max_steps), source)
    statement = PrivacyStatement(
        epsilon=epsilon,
        delta=delta,
        adjacency=ADD_OR_REMOVE_ONE,
        unit="example",
        released="the point of the run chosen among several",
        private=source.is_private,
        notes=(f"chosen by {selection}", f"made for a public size of {size}"),
    )
    return Boosted(x, runs, statement)


def repetition_mean(failure: float) -> float:
    """How many runs on average: a Poisson(m) number of fair coins shows no head with probability e^(-m/2)."""
    return max(1.0, 2.0 * math.log(1.0 / failure))


def repetition_rho(*, epsilon: float, delta: float, failure: float) -> float:
    """The largest rho for which repeating a rho-zCDP run stays (epsilon, delta)-DP."""

    def excess(log_rho: float) -> float:
        event = RepeatAndSelectDpEvent(ZCDpEvent(math.exp(log_rho)), repetition_mean(failure), math.inf)
        return renyi_epsilon([(event, 1)], delta) - epsilon

    high = math.log(epsilon)
    low = high - 24.0
    if excess(low) > 0.0:
        raise ValueError(f"epsilon must be larger for a repetition at delta = {delta:.3g}, got {epsilon}")
    return math.exp(float(optimize.bisect(excess, low, high, xtol=0.01)) - 0.01)


@dataclass(frozen=True)
class _Task:
    """The problem that all runs share."""

    method: BiasReducedSGD
    loss: SparseLoss
    start: F64
    size: int
    bound: float
    """What an example adds to a score times `size`, at most: B, or 2 L."""

    @property
    def sensitivity(self) -> float:
        """How far one example moves a score, either way."""
        return self.bound / self.size

    def run(self, schedule: BatchSchedule, source: NoiseSource) -> F64:
        """One run, with its levels in a fresh order: the cost does not depend on the order."""
        shuffled = schedule.shuffled(source.sampling)
        return self.method.minimise(self.loss, self.start, schedule=shuffled, source=source).x

    def score(self, x: F64) -> float:
        """How good x is, the higher the better."""
        examples = np.arange(self.loss.size)
        chunks = [examples[at : at + _CHUNK] for at in range(0, examples.size, _CHUNK)]
        if self.method.convex:
            return sum(self._gain(x, rows) for rows in chunks) / self.size
        total = SparseCounts.zeros(self.loss.dimension)
        for rows in chunks:
            gradients = clipped_rows(self.loss.gradient_rows(x, rows), self.method.l2_bound)
            total = combine((1.0, total), (1.0, row_sum(gradients, np.ones(rows.size, dtype=bool))))
        return -float(np.linalg.norm(total.values)) / self.size

    def _gain(self, x: F64, rows: I64) -> float:
        """How much better x is than the start on these examples, each counted within [-B, B]; a NaN counts 0."""
        gains = np.nan_to_num(self.loss.value(self.start, rows) - self.loss.value(x, rows), nan=0.0)
        return float(np.clip(gains, -SAFE * self.bound, SAFE * self.bound).sum())


@dataclass(frozen=True)
class _Budget:
    epsilon: float
    delta: float
    failure: float
    max_steps: int


def _split(task: _Task, budget: _Budget, source: NoiseSource, choose: Callable[..., int]) -> tuple[F64, int]:
    """K runs at an equal share each, and a choice at the same share."""
    runs = math.ceil(math.log2(2.0 / budget.failure))
    share = budget.epsilon / (runs + 1)
    schedule = pld_schedule(
        size=task.size,
        epsilon=share,
        delta=budget.delta / (runs + 1),
        stream=source.sampling,
        max_steps=budget.max_steps,
    )
    points = [task.run(schedule, source) for _ in range(runs)]
    scores = [task.score(x) for x in points]
    chosen = choose(scores, epsilon=share, sensitivity=task.sensitivity, stream=source.selection)
    return points[chosen], runs


def _repetition(task: _Task, budget: _Budget, source: NoiseSource) -> tuple[F64, int]:
    """A Poisson number of runs, each scored with noise; the best is released, nothing else."""
    rho = repetition_rho(epsilon=budget.epsilon, delta=budget.delta, failure=budget.failure)
    score_multiplier = 1.0 / math.sqrt(2.0 * _SCORE_SHARE * rho)
    mean = repetition_mean(budget.failure)
    schedule = repetition_schedule(
        size=task.size,
        epsilon=budget.epsilon,
        delta=budget.delta,
        rho=(1.0 - _SCORE_SHARE) * rho,
        score_multiplier=score_multiplier,
        mean=mean,
        stream=source.sampling,
        max_steps=budget.max_steps,
    )
    best, best_score = task.start, -math.inf
    runs = _poisson(mean, source)
    for _ in range(runs):
        x = task.run(schedule, source)
        noisy = gaussian([task.score(x)], std=task.sensitivity * score_multiplier, stream=source.selection)
        if (score := float(noisy[0])) > best_score:
            best, best_score = x, score
    return best, runs


def _choose_laplace(scores: list[float], *, epsilon: float, sensitivity: float, stream: Stream) -> int:
    return int(np.asarray(report_noisy_max(scores, epsilon=epsilon, sensitivity=sensitivity, stream=stream)))


def _choose_flip(scores: list[float], *, epsilon: float, sensitivity: float, stream: Stream) -> int:
    return int(np.asarray(permute_and_flip(scores, epsilon=epsilon, sensitivity=sensitivity, stream=stream)))


_METHODS: dict[str, Callable[[_Task, _Budget, NoiseSource], tuple[F64, int]]] = {
    "repetition": _repetition,
    "laplace": partial(_split, choose=_choose_laplace),
    "permute-and-flip": partial(_split, choose=_choose_flip),
}


def _bound(method: BiasReducedSGD, loss_range: float | None) -> float:
    if not method.convex:
        return 2.0 * method.l2_bound
    if loss_range is None:
        raise ValueError("loss_range must be given for a convex loss: it bounds the sensitivity of scores")
    return check_positive("loss_range", loss_range)


def _poisson(mean: float, source: NoiseSource) -> int:
    """How many unit-rate arrivals before time `mean`."""
    arrivals, time = 0, float(source.sampling.exponential(1)[0])
    while time < mean:
        arrivals, time = arrivals + 1, time + float(source.sampling.exponential(1)[0])
    return arrivals
