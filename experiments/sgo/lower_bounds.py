"""The lower bounds of SGO section 4 as measurements: no private mean falls below the floor of its hard data.

Three pictures: private estimators on drawn hard instances, above a floor that is certified with its constants;
how often a packing vector can be told from a private mean, below the packing bound; and how well members of the
data can be traced from an answer, which is what accuracy beyond the floor would cost.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from experiments.common.study import Study
from experiments.sgo.slopes import Curve, Panel, Slope, slope, write
from sparsedp.accounting import analytic_gaussian_sigma
from sparsedp.convex.mean.projection import mean_noise, project
from sparsedp.convex.mean.sparse_mean import Method, private_sparse_mean
from sparsedp.convex.theory.hard_instances import (
    fingerprinting_block,
    hard_mean_instance,
    hardest_design,
    log_packing_size,
    packing,
    tracing_scores,
)
from sparsedp.convex.theory.rates import mean_lower
from sparsedp.randomness import NoiseSource

EPSILON, DELTA = 1.0, 1e-6


def run(study: Study) -> dict[str, Any]:
    """Measure, fit, draw."""
    source, quick = NoiseSource(seed=2024), study.quick
    panels: list[Panel] = []
    slopes: list[Slope] = []
    smallest = math.inf
    for delta in (0.0, DELTA):
        panel, fitted, ratio = _above_the_floor(delta, source, quick)
        panels.append(panel)
        slopes += fitted
        smallest = min(smallest, ratio)
    panels.append(_telling_apart(source, quick))
    panels.append(_tracing(source, quick))
    lead = (
        f"Hard data for private means at epsilon = {EPSILON:g}, delta = {DELTA:g} or 0 (replace-one, unit: row, "
        "released: the mean). A floor holds for every mechanism with that guarantee, constants included."
    )
    numbers = {"least_error_over_floor": smallest}
    title = "Lower bounds for private means (SGO section 4)"
    return write(study, title, lead, panels, slopes, numbers=numbers)


def _above_the_floor(delta: float, source: NoiseSource, quick: bool) -> tuple[Panel, list[Slope], float]:
    """Errors on hard instances against n, through the three regimes, and the slopes of the floor itself."""
    d, s = (2**10, 8) if quick else (2**13, 8)
    n = [2**k for k in range(2, 12 if quick else 16, 3 if quick else 1)]
    methods: tuple[Method, ...] = ("projection", "auto", "gaussian") if delta else ("projection", "auto")
    errors: dict[str, list[float]] = {name: [] for name in methods}
    for each in n:
        squares: dict[str, list[float]] = {name: [] for name in methods}
        for _ in range(2 if quick else 4):
            data = hard_mean_instance(each, d, s, EPSILON, delta, stream=source.sampling).data
            mean = np.asarray(data.mean(axis=0)).ravel()
            for name in methods:
                answer = private_sparse_mean(
                    data, epsilon=EPSILON, delta=delta, l2_bound=1.0, sparsity=s, method=name, source=source
                )
                squares[name].append(float(((answer.estimate - mean) ** 2).sum()))
        for name in methods:
            errors[name].append(math.sqrt(np.mean(squares[name])))
    floor = [hardest_design(each, d, s, EPSILON, delta).floor for each in n]
    curves = [Curve(name, n, values) for name, values in errors.items()]
    curves.append(Curve("certified floor", n, floor, "floor"))
    theorem = [mean_lower(each, d, s, EPSILON, delta).value for each in n]
    curves.append(Curve("lower bound, constant 1", n, theorem, "theorem"))
    kind = "fingerprinting" if delta else "packing"
    panel = Panel(f"Hard instances ({kind}), d = {d}, s = {s}", "n", "l2 error", curves)
    ratio = min(value / low for values in errors.values() for value, low in zip(values, floor, strict=True))
    return panel, _floor_slopes(delta), ratio


def _floor_slopes(delta: float) -> list[Slope]:
    """The certified floor must fall as the theorem does. No data is needed to know it."""
    setting = f"lower bound, {'(eps, delta)-DP' if delta else 'eps-DP'}"
    found = []
    grids: list[tuple[str, str, list[tuple[int, int, int]]]] = [
        ("high-dimensional", "n", [(2**k, 2**26, 8) for k in range(9, 17)]),
        ("low-dimensional", "n", [(2**k, 2**9, 8) for k in range(18, 25)]),
        ("high-dimensional", "s", [(2**16, 2**30, 2**k) for k in range(4, 11)]),
        ("low-dimensional", "d", [(2**26, 2**k, 64) for k in range(8, 15)]),
    ]
    for regime, over, sizes in grids:
        x = [size["nds".index(over)] for size in sizes]
        floor = [hardest_design(*size, 0.1, delta * 1e-6).floor for size in sizes]
        theorem = [mean_lower(*size, 0.1, delta * 1e-6).terms[regime] for size in sizes]
        found.append(slope(setting, regime, over, x, floor, theorem))
    return found


def _telling_apart(source: NoiseSource, quick: bool) -> Panel:
    """Data of n copies of one packing vector: how often the vector nearest to a private mean is the right one."""
    columns, s, count = 256, 4, 64
    n = [2**k for k in range(1, 8 if quick else 11)]
    vectors = packing(columns, s, count, source.sampling).toarray()
    runs = 40 if quick else 200
    rates = []
    for each in n:
        noise = mean_noise(each, epsilon=EPSILON, delta=0.0, l2_bound=1.0, sparsity=s)
        right = 0
        for truth in source.sampling.integers(count, runs):
            answer = project(noise.add(vectors[truth], source.noise), math.sqrt(s)).point
            right += int(np.argmax(vectors @ answer)) == int(truth)
        rates.append(max(right, 0.5) / runs)
    bound = [min(1.0, math.exp(min(EPSILON * each - math.log(count), 0.0))) for each in n]
    full = [min(1.0, math.exp(min(EPSILON * each - log_packing_size(columns, s), 0.0))) for each in n]
    curves = [
        Curve(f"identified among {count}", n, rates),
        Curve(f"packing bound for {count}: e^(eps n) / {count}", n, bound, "floor"),
        Curve("packing bound for the largest packing", n, full, "theorem"),
    ]
    return Panel(f"Telling packing vectors apart, eps-DP, d = {columns}, s = {s}", "n", "probability", curves)


def _tracing(source: NoiseSource, quick: bool) -> Panel:
    """Fingerprinting: the score of members against strangers, as the noise of the answer grows."""
    rows, s = 40, 1000 if quick else 4000
    epsilons = [0.01, 1.0, 100.0] if quick else [0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0]
    block = fingerprinting_block(rows, s, source.sampling)
    draws = source.sampling.uniform((rows, s))
    strangers = np.where(draws < (1.0 + block.column_means) / 2.0, 1.0, -1.0) / math.sqrt(s)
    exact = block.data.mean(axis=0)
    gaps, errors = [], []
    for epsilon in epsilons:
        std = 2.0 / rows * analytic_gaussian_sigma(epsilon, DELTA)
        answer = exact + std * source.noise.normal(s)
        scores = [tracing_scores(answer, people, block.column_means) for people in (block.data, strangers)]
        spread = math.sqrt((scores[0].var() + scores[1].var()) / 2.0)
        gaps.append(max(float(scores[0].mean() - scores[1].mean()) / spread, 1e-2))
        errors.append(math.sqrt(s) * std)
    curves = [
        Curve("members above strangers, in standard deviations", epsilons, gaps),
        Curve("error of the answer", epsilons, errors, "baseline"),
    ]
    return Panel(f"Tracing members of {rows} rows in {s} columns", "epsilon", "score gap, or error", curves)
