"""Table 2 of SGO: convex and nonconvex optimisation with sparse gradients, beside dense noisy descent.

Rates are worst cases, so each setting is measured on the problems that make its algorithm work hardest. All
are sums over K blocks of s coordinates, an example being a block: `wells` (a loss |x_j| / sqrt(s) on each
coordinate of the block, minimised at 0, where noise alone costs), `slopes` (a ramp along the block whose end lies
at distance D: where regularisation costs) and `hills` (its nonconvex form, which a method must walk down).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from experiments.common.study import Study
from experiments.sgo.blocks import Blocks, Hill, RecordingLoss, block_rows, hill, ramp, well
from experiments.sgo.slopes import Curve, Panel, Slope, anchored, slope, write
from sparsedp.accounting import analytic_gaussian_sigma
from sparsedp.convex.erm.output_perturbation import output_perturbation
from sparsedp.convex.erm.regularization import Goal, theorem_lambda
from sparsedp.convex.erm.risk import FunctionRisk, Regularity
from sparsedp.convex.sgd.batch_schedule import pld_schedule
from sparsedp.convex.sgd.bias_reduced_sgd import BiasReducedSGD
from sparsedp.convex.sgd.partitioned_erm import PartitionedERM
from sparsedp.convex.sgd.protocol import LinearModelLoss
from sparsedp.convex.sgd.step_sizes import stationary_step_size
from sparsedp.convex.theory.rates import erm_upper, sco_upper, stationarity_upper
from sparsedp.randomness import NoiseSource

EPSILON, DELTA, BETA = 1.0, 1e-6, 0.05
HILL_EPSILON = 8.0
"""Bias-reduced SGD reaches its rate at n of 10^5 for epsilon 1; at 8 a laptop sees it."""
STEP_CONSTANT = 4.0
"""The constant that Theorem 6.8 leaves open in the step size."""


def run(study: Study) -> dict[str, Any]:
    """Measure, fit, draw."""
    risks = _Risks(NoiseSource(seed=2024), study.quick)
    panels: list[Panel] = []
    slopes: list[Slope] = []
    for panel, fitted in (
        risks.convex("n"),
        risks.convex("s"),
        risks.convex("d"),
        risks.population(),
        risks.pure("n"),
        risks.pure("s"),
        risks.stationarity(),
    ):
        panels.append(panel)
        slopes += fitted
    lead = (
        f"Optimisation over s-sparse gradients of norm 1 and a reach of D = 1 at delta = {DELTA:g} or 0, "
        f"epsilon = {EPSILON:g} (convex; replace-one, unit: example, released: the point) or "
        f"{HILL_EPSILON:g} (nonconvex; add-or-remove-one, the same). Theorem curves are drawn through the middle "
        "of the measurement."
    )
    return write(study, "Optimisation with sparse gradients (SGO Table 2)", lead, panels, slopes)


class _Risks:
    """Measurements at one size of effort."""

    def __init__(self, source: NoiseSource, quick: bool) -> None:
        self.source, self.quick = source, quick
        self.runs = 1 if quick else 3

    def convex(self, over: str) -> tuple[Panel, list[Slope]]:
        """Theorem 5.1, delta > 0: n^-1/2, s^1/4, a logarithm in d."""
        d = 2**12 if self.quick else 2**15
        grid = {
            "n": [(n, d, 4) for n in self._powers(8, 14)],
            "s": [(2**14, d, s) for s in self._powers(0, 5)],
            "d": [(2**12, d, 4) for d in self._powers(*((9, 13) if self.quick else (11, 17)))],
        }[over]
        x = [size["nds".index(over)] for size in grid]
        measured = [max(self._wells(*size), self._slopes(*size)) for size in grid]
        theorem = [erm_upper(*size, EPSILON, DELTA).terms["high-dimensional"] for size in grid]
        dense = [self._descent(*size) for size in grid]
        rate = [erm_upper(*size, EPSILON, DELTA).terms["low-dimensional"] for size in grid]
        curves = [
            Curve("output perturbation, l_inf projection", x, measured),
            Curve("theorem (sparse)", x, anchored(theorem, measured), "theorem"),
            Curve("noisy gradient descent (dense)", x, dense, "baseline"),
            Curve("dense rate, constant 1", x, rate, "theorem"),
        ]
        panel = Panel(f"Convex ERM, (eps, delta)-DP, against {over}", over, "excess empirical risk", curves)
        return panel, [slope("convex ERM, (eps, delta)-DP", "high-dimensional", over, x, measured, theorem)]

    def population(self) -> tuple[Panel, list[Slope]]:
        """Theorem 5.6: blocks drawn at random, the excess taken over all blocks alike."""
        n = self._powers(8, 14)
        measured = [self._slopes(each, 2**15, 4, goal="population") for each in n]
        theorem = [sco_upper(each, 2**15, 4, EPSILON, DELTA).value for each in n]
        curves = [
            Curve("output perturbation, lambda for the population", n, measured),
            Curve("theorem (sparse)", n, anchored(theorem, measured), "theorem"),
        ]
        panel = Panel("Convex SCO, (eps, delta)-DP, against n", "n", "excess population risk", curves)
        return panel, [slope("convex SCO, (eps, delta)-DP", "high-dimensional", "n", n, measured, theorem)]

    def pure(self, over: str) -> tuple[Panel, list[Slope]]:
        """Theorem 5.1, delta = 0: (s/n)^1/3 for smooth losses."""
        grid = {
            "n": [(n, 2**14, 2) for n in self._powers(12, 20)],
            "s": [(2**20, 2**14, s) for s in self._powers(0, 6)],
        }[over]
        x = [size["nds".index(over)] for size in grid]
        measured = [self._smooth(*size) for size in grid]
        theorem = [erm_upper(*size, EPSILON, smoothness=1.0).terms["high-dimensional"] for size in grid]
        rate = [erm_upper(*size, EPSILON, smoothness=1.0).terms["low-dimensional"] for size in grid]
        curves = [
            Curve("output perturbation, Laplace", x, measured),
            Curve("theorem (sparse)", x, anchored(theorem, measured), "theorem"),
            Curve("dense rate, constant 1", x, rate, "theorem"),
        ]
        panel = Panel(f"Convex ERM, eps-DP, against {over}", over, "excess empirical risk", curves)
        return panel, [slope("convex ERM, eps-DP", "high-dimensional", over, x, measured, theorem)]

    def stationarity(self) -> tuple[Panel, list[Slope]]:
        """Theorem 6.8: the gradient at the point that bias-reduced SGD returns, n^-1/4."""
        n, d, s = ([2**5, 2**6, 2**7] if self.quick else self._powers(8, 12)), 2**22, 1
        measured = [self._hills(each, d, s) for each in n]
        theorem = [
            stationarity_upper(each, d, s, HILL_EPSILON, DELTA).terms["high-dimensional"] for each in n
        ]
        dense = [self._dense_hills(each, d, s) for each in n]
        wide = [self._partitioned(each, 2**10, s) for each in n]
        curves = [
            Curve("bias-reduced SGD", n, measured),
            Curve("theorem (sparse)", n, anchored(theorem, measured), "theorem"),
            Curve("noisy gradient descent (dense)", n, dense, "baseline"),
            Curve("partitioned ERM (WIDE Algorithm 2)", n, wide, "baseline"),
        ]
        panel = Panel("Nonconvex, (eps, delta)-DP, against n", "n", "norm of the empirical gradient", curves)
        return panel, [slope("nonconvex, (eps, delta)-DP", "high-dimensional", "n", n, measured, theorem)]

    def _powers(self, first: int, last: int) -> list[int]:
        """Powers of two; only three of them when quick."""
        chosen = sorted({first, (first + last) // 2, last - 2}) if self.quick else range(first, last + 1)
        return [2**k for k in chosen]

    def _wells(self, n: int, d: int, s: int) -> float:
        """Noise alone: the minimiser is 0 with or without regularisation."""
        width = 1e-3  # far below the noise, and as smooth as the solver's promise needs
        risk = Blocks(np.full(d // s, s / d), s, d, well(width), per_coordinate=True)
        return self._excess(risk, risk, n, Regularity.sparse(1.0, s, 1.0 / (width * math.sqrt(s))))

    def _slopes(self, n: int, d: int, s: int, goal: Goal = "empirical") -> float:
        """Regularisation: K = 4 / (lambda D)^2 blocks are the ones it holds back most."""
        regularity = Regularity.sparse(1.0, s)
        lam = self._lambda(regularity, n, d, DELTA, goal)
        k = int(min(n, d // s, max(1.0, 4.0 / lam**2)))
        end = 1.0 / math.sqrt(k)
        regularity = Regularity.sparse(1.0, s, 1.0 / (0.1 * end))
        even = np.full(k, 1.0 / k)
        drawn = (
            np.bincount(self.source.sampling.integers(k, n), minlength=k) / n
            if goal == "population"
            else even
        )
        problem, target = (Blocks(weights, s, d, ramp(end, 0.1 * end)) for weights in (drawn, even))
        return self._excess(problem, target, n, regularity, goal=goal)

    def _smooth(self, n: int, d: int, s: int) -> float:
        """A paraboloid of smoothness 1 over K = 1 / lambda blocks, minimised at distance 1."""
        regularity = Regularity.sparse(1.0, s, 1.0)
        k = max(1, round(1.0 / self._lambda(regularity, n, d, 0.0, "empirical")))
        problem = Blocks(np.full(k, 1.0 / k), s, d, ramp(1.0 / math.sqrt(k), 1.0))
        return self._excess(problem, problem, n, regularity, delta=0.0)

    def _lambda(self, regularity: Regularity, n: int, d: int, delta: float, goal: Goal) -> float:
        return theorem_lambda(
            regularity,
            n=n,
            dimension=d,
            epsilon=EPSILON,
            delta=delta,
            diameter=1.0,
            goal=goal,
            beta=BETA,
        )

    def _excess(
        self,
        problem: Blocks,
        target: Blocks,
        n: int,
        regularity: Regularity,
        *,
        delta: float = DELTA,
        goal: Goal = "empirical",
    ) -> float:
        """Algorithm 3 on `problem`; the mean excess, by `target`, whose minimum is 0."""
        risk = FunctionRisk(problem.value_and_gradient, n, problem.d, regularity, problem.hessian)
        excesses = []
        for _ in range(self.runs):
            answer = output_perturbation(
                risk,
                epsilon=EPSILON,
                delta=delta,
                diameter=1.0,
                goal=goal,
                beta=BETA,
                source=self.source,
            )
            excesses.append(target.value_and_gradient(answer.x)[0])
        return float(np.mean(excesses))

    def _descent(self, n: int, d: int, s: int) -> float:
        """Dense noisy projected gradient descent, on the worst of a few numbers of blocks."""
        return max(self._descend(n, d, s, min(k, n, d // s)) for k in (1, 8, 64))

    def _descend(self, n: int, d: int, s: int, k: int, steps: int = 64) -> float:
        end = 1.0 / math.sqrt(k)
        problem = Blocks(np.full(k, 1.0 / k), s, d, ramp(end, 0.1 * end))
        std, step = _dense_step(n, d, k, steps, EPSILON)
        x, total = np.zeros(d), np.zeros(d)
        for _ in range(steps):
            x = x - step * (problem.value_and_gradient(x)[1] + std * self.source.noise.normal(d))
            x *= min(1.0, 1.0 / float(np.linalg.norm(x)))
            total += x
        return problem.value_and_gradient(total / steps)[0]

    def _dense_hills(self, n: int, d: int, s: int) -> float:
        """The same without a ball. Coordinates outside the blocks bear noise but no gradient: they are left out."""
        worst = 0.0
        for k in (4, 16, 64):
            problem = Blocks(np.full(k, 1.0 / k), s, k * s, hill)
            std, step = _dense_step(n, d, k, 64, HILL_EPSILON)
            x, squares = np.zeros(k * s), []
            for _ in range(64):
                squares.append(problem.gradient_norm(x) ** 2)
                x = x - step * (problem.value_and_gradient(x)[1] + std * self.source.noise.normal(k * s))
            worst = max(worst, math.sqrt(np.mean(squares)))
        return worst

    def _hills(self, n: int, d: int, s: int) -> float:
        """As many blocks as bias-reduced SGD can just walk down; the norm at a random iterate, root mean square."""
        # Budget for n steps, the order of the theorem's T; where it ends exactly is a matter of luck.
        schedule = pld_schedule(
            size=n, epsilon=HILL_EPSILON, delta=DELTA, stream=self.source.sampling, max_steps=n
        )
        step = STEP_CONSTANT * stationary_step_size(
            schedule, dimension=d, sparsity=s, l2_bound=1.0, gap=1.0, smoothness=Hill.smoothness
        )
        k = int(min(n, d // s, max(1.0, step * schedule.steps)))
        risk = Blocks(np.full(k, 1.0 / k), s, k * s, hill)
        recorded = RecordingLoss(LinearModelLoss(block_rows(n, d, s, k), np.zeros(n), Hill()), risk)
        method = BiasReducedSGD(l2_bound=1.0, sparsity=s, step_size=step)
        for _ in range(1 if self.quick else max(1, 2**12 // n)):
            method.minimise(recorded, np.zeros(d), schedule=schedule, source=self.source)
        return math.sqrt(np.mean(recorded.squared_norms))

    def _partitioned(self, n: int, d: int, s: int) -> float:
        """WIDE's method on a partition made for it: a part is a block."""
        k = 4
        rows = block_rows(n, d, s, k)
        method = PartitionedERM(linf_bound=1.0, positives=s, iterations=16, step_size=0.1, convex=False)
        found = method.minimise(
            LinearModelLoss(rows, np.zeros(n), Hill()),
            np.zeros(d),
            parts=[np.flatnonzero(np.arange(n) % k == part) for part in range(k)],
            epsilon=HILL_EPSILON,
            delta=DELTA,
            source=self.source,
        )
        return Blocks(np.full(k, 1.0 / k), s, d, hill).gradient_norm(found.x)


def _dense_step(n: int, d: int, k: int, steps: int, epsilon: float) -> tuple[float, float]:
    """Noise and length of a dense step: T Gaussians of sigma sqrt(T) cost as much as one of sigma."""
    std = 2.0 / n * analytic_gaussian_sigma(epsilon, DELTA) * math.sqrt(steps)
    return std, 1.0 / math.sqrt(steps * (1.0 / k + d * std**2))
