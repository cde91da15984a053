"""Table 1 of SGO: the error of private means against n, d and s, beside the theorem and the dense mechanism.

A rate is a worst case over data, so every error is the largest over a family: K blocks of s coordinates, each
the mean of n/K equal rows (the block-diagonal instance of section 4.1), over K. Errors are distances to the
empirical mean, root mean square over runs; sampling error plays no part.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl

from experiments.common.study import Study
from experiments.sgo.blocks import block_rows
from experiments.sgo.slopes import Curve, Panel, Slope, anchored, slope, write
from sparsedp.convex.mean.adaptive import denoise
from sparsedp.convex.mean.projection import mean_noise, project
from sparsedp.convex.mean.sparse_mean import private_sparse_mean
from sparsedp.convex.sgd.sparse_projection import project_noisy
from sparsedp.convex.theory.hard_instances import hardest_design
from sparsedp.convex.theory.rates import mean_lower, mean_upper
from sparsedp.core.arrays import F64
from sparsedp.core.counts import SparseCounts
from sparsedp.randomness import NoiseSource, Stream

EPSILON, DELTA, BETA = 1.0, 1e-6, 0.05


def run(study: Study) -> dict[str, Any]:
    """Measure, fit, draw."""
    errors = _Errors(NoiseSource(seed=2024).noise, runs=1 if study.quick else 3, quick=study.quick)
    panels, slopes = [], []
    for delta in (DELTA, 0.0):
        panels.append(errors.regimes(delta))
        for panel, fitted in (errors.over_n(delta), errors.over_s(delta), errors.over_d(delta)):
            panels.append(panel)
            slopes += fitted
    methods, numbers = errors.auto_against_single()
    lead = (
        f"Private mean of sparse rows of norm 1 at epsilon = {EPSILON:g}, delta = {DELTA:g} or 0 (replace-"
        "one, unit: row, released: the mean). Theorem curves are drawn through the middle of the measurement."
    )
    title = "Mean estimation with sparse data (SGO Table 1)"
    return write(study, title, lead, panels, slopes, {"Methods compared": methods}, numbers)


class _Errors:
    """Measurements at one size of effort."""

    def __init__(self, stream: Stream, runs: int, quick: bool) -> None:
        self.stream, self.runs, self.quick = stream, runs, quick

    def regimes(self, delta: float) -> Panel:
        """All three regimes in one picture, with the dense mechanism and the certified floor."""
        d, s = (2**10, 4) if self.quick else (2**14, 4)
        n = [2**k for k in range(2, 15 if self.quick else 21, 2 if self.quick else 1)]
        names = ("projection (Algorithm 1)", "auto", "Gaussian" if delta else "Laplace")
        measured: dict[str, list[float]] = {name: [] for name in names}
        for each in n:
            worst = [self._dense_errors(each, d, s, k, delta) for k in self._blocks(each, d, s, delta)]
            for name, errors in zip(measured, zip(*worst, strict=True), strict=True):
                measured[name].append(max(errors))
        upper = [mean_upper(each, d, s, EPSILON, delta).value for each in n]
        lower = [mean_lower(each, d, s, EPSILON, delta).value for each in n]
        floor = [hardest_design(each, d, s, EPSILON, delta).floor for each in n]
        curves = [
            Curve(name, n, errors, "baseline" if name in ("Gaussian", "Laplace") else "measured")
            for name, errors in measured.items()
        ]
        curves.append(Curve("upper bound, constant 1", n, upper, "theorem"))
        curves.append(Curve("lower bound, constant 1", n, lower, "theorem"))
        curves.append(Curve("certified floor", n, floor, "floor"))
        return Panel(f"Three regimes, {_dp(delta)}, d = {d}, s = {s}", "n", "l2 error", curves)

    def over_n(self, delta: float) -> tuple[Panel, list[Slope]]:
        """High dimension: n^-1/2. Low dimension: n^-1. Few rows: constant."""
        d, s, first, last = (2**26, 4, 11, 18) if delta else (2**18, 1, 6, 11)
        grids = [
            (self._powers(first, last), d, s, "high-dimensional"),
            (self._powers(16, 22), 2**8, 4, "low-dimensional"),
            ([2, 4, 8], 2**12, 1, "constant"),
        ]
        return self._fits("n", delta, [(x, [(n, a, b) for n in x], regime) for x, a, b, regime in grids])

    def over_s(self, delta: float) -> tuple[Panel, list[Slope]]:
        """High dimension: s^1/4, pure s^1/2. Low dimension: no s, pure s^1/2."""
        n, d, most = (2**17, 2**30, 5) if delta else (2**12, 2**16, 3)
        high, low = self._powers(0, most), self._powers(0, 4)
        grids = [
            (high, [(n, d, s) for s in high], "high-dimensional"),
            (low, [(2**20, 2**8, s) for s in low], "low-dimensional"),
        ]
        return self._fits("s", delta, grids)

    def over_d(self, delta: float) -> tuple[Panel, list[Slope]]:
        """High dimension: a logarithm. Low dimension: d^1/2."""
        n, s = (2**14, 4) if delta else (2**9, 1)
        high, low = self._powers(*((20, 40, 4) if delta else (13, 18))), self._powers(3, 9)
        grids = [
            (high, [(n, d, s) for d in high], "high-dimensional"),
            (low, [(2**20, d, 2) for d in low], "low-dimensional"),
        ]
        return self._fits("d", delta, grids)

    def _powers(self, first: int, last: int, step: int = 1) -> list[int]:
        """Powers of two; only three of them when quick."""
        middle = (first + last) // 2
        return [2**k for k in ((first, middle, last) if self.quick else range(first, last + 1, step))]

    def auto_against_single(self) -> tuple[pl.DataFrame, dict[str, float]]:
        """`private_sparse_mean(method="auto")` against each method alone, by its public face."""
        grid = [
            (n, d, s)
            for n in ((64, 1024) if self.quick else (64, 256, 1024, 8192))
            for d in ((512,) if self.quick else (256, 2048, 16384))
            for s in ((4,) if self.quick else (1, 8, 32))
        ]
        rows = [self._methods(n, d, s, k) for n, d, s in grid for k in self._blocks(n, d, s, DELTA)[::2]]
        worst = max(rows, key=lambda row: row["auto_over_best"])
        numbers = {
            "auto_over_best_single_at_worst": worst["auto_over_best"],
            "standard_error_of_this_ratio": worst["standard_error"],
            "points_compared": len(rows),
        }
        return pl.DataFrame(rows, infer_schema_length=None), numbers

    def _methods(self, n: int, d: int, s: int, k: int) -> dict[str, Any]:
        rows = block_rows(n, d, s, k)
        mean = np.asarray(rows.mean(axis=0)).ravel()
        measurements = n * math.sqrt(s * math.log(d / s) / math.log(1 / DELTA)) if d > s else d
        squares = {}
        for method in ("auto", "projection", "gaussian", "recovery"):
            # Basis pursuit by a general solver is slow: where it is feasible at all, two runs tell enough.
            if method == "recovery" and (measurements > 300 or measurements * d > 2e6):
                continue
            answers = (
                private_sparse_mean(
                    rows,
                    epsilon=EPSILON,
                    delta=DELTA,
                    l2_bound=1.0,
                    sparsity=s,
                    method=method,
                    source=NoiseSource(seed),
                )
                # The same seeds for every method: they are compared on the same noise.
                for seed in range(2 if method == "recovery" else self.runs * max(16, 2**15 // d))
            )
            squares[method] = np.array([_square(answer.estimate - mean) for answer in answers])
        found = {method: math.sqrt(each.mean()) for method, each in squares.items()}
        best = min((method for method in found if method != "auto"), key=lambda method: found[method])
        ratio = found["auto"] / found[best]
        error = _error_of_ratio(squares["auto"], squares[best]) / (2.0 * ratio)
        sizes = {"n": n, "d": d, "s": s, "blocks": k}
        return {**sizes, **found, "best": best, "auto_over_best": ratio, "standard_error": error}

    def _fits(
        self,
        over: str,
        delta: float,
        grids: Sequence[tuple[Sequence[int], Sequence[tuple[int, int, int]], str]],
    ) -> tuple[Panel, list[Slope]]:
        curves, slopes = [], []
        for x, sizes, regime in grids:
            measured = [self._worst(n, d, s, delta) for n, d, s in sizes]
            theorem = [mean_upper(n, d, s, EPSILON, delta).terms[regime] for n, d, s in sizes]
            fixed = ", ".join(
                f"{name} = {value}" for name, value in zip("nds", sizes[0], strict=True) if name != over
            )
            curves.append(Curve(f"{regime} ({fixed})", x, measured))
            curves.append(Curve(f"theorem, {regime}", x, anchored(theorem, measured), "theorem"))
            slopes.append(slope(f"mean, {_dp(delta)}", regime, over, x, measured, theorem))
        return Panel(f"Error against {over}, {_dp(delta)}", over, "l2 error", curves), slopes

    def _worst(self, n: int, d: int, s: int, delta: float) -> float:
        """The largest error over the family, of the projection mechanism."""
        if delta and d > 2**14:
            return max(self._sparse_error(n, d, s, k) for k in self._blocks(n, d, s, delta))
        return max(self._dense_errors(n, d, s, k, delta)[0] for k in self._blocks(n, d, s, delta))

    def _blocks(self, n: int, d: int, s: int, delta: float) -> list[int]:
        """Numbers of blocks around the one where their entries meet the largest noise: the worst is there."""
        noise = mean_noise(n, epsilon=EPSILON, delta=delta, l2_bound=1.0, sparsity=s)
        meets = 1.0 / (math.sqrt(s) * noise.largest(d, 0.5))
        most = min(n, d // s)
        tried = {
            int(min(most, max(1.0, meets * 2.0**k))) for k in ((0, 1, 2) if self.quick else (-1, 0, 1, 2, 3))
        }
        return sorted(tried)

    def _sparse_error(self, n: int, d: int, s: int, k: int) -> float:
        """Algorithm 1 without writing down d coordinates."""
        std = mean_noise(n, epsilon=EPSILON, delta=DELTA, l2_bound=1.0, sparsity=s).scale
        mean = SparseCounts(np.arange(k * s), np.full(k * s, 1.0 / (k * math.sqrt(s))), d)
        squares = []
        for _ in range(self.runs):
            answer = project_noisy(mean, std=std, radius=math.sqrt(s), stream=self.stream)
            hit = answer.ids < k * s
            missed = mean.values.copy()
            missed[answer.ids[hit]] -= answer.values[hit]
            squares.append(float((missed**2).sum() + (answer.values[~hit] ** 2).sum()))
        return math.sqrt(np.mean(squares))

    def _dense_errors(self, n: int, d: int, s: int, k: int, delta: float) -> tuple[float, float, float]:
        """Algorithm 1, `auto`, and noise alone, on the same noisy means."""
        noise = mean_noise(n, epsilon=EPSILON, delta=delta, l2_bound=1.0, sparsity=s)
        mean = np.zeros(d)
        mean[: k * s] = 1.0 / (k * math.sqrt(s))
        squares = []
        for _ in range(self.runs * max(1, 2**17 // d)):
            noisy = noise.add(mean, self.stream)
            widest = project(noisy, math.sqrt(s))
            chosen = denoise(noisy, noise, l2_bound=1.0, radius=math.sqrt(s))
            squares.append([_square(answer - mean) for answer in (widest.point, chosen.point, noisy)])
        projected, auto, plain = np.sqrt(np.mean(squares, axis=0))
        return float(projected), float(auto), float(plain)


def _error_of_ratio(above: F64, below: F64) -> float:
    """The standard error of a ratio of two means; over the same runs, what they share cancels."""
    ratio = above.mean() / below.mean()
    if above.size == below.size:
        return float((above - ratio * below).std() / (math.sqrt(above.size) * below.mean()))
    variances = above.var() / above.size + ratio**2 * below.var() / below.size
    return math.sqrt(float(variances)) / float(below.mean())


def _square(x: F64) -> float:
    return float(x @ x)


def _dp(delta: float) -> str:
    return "(eps, delta)-DP" if delta else "eps-DP"
