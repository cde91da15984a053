"""private_sparse_mean: a large one in seconds and megabytes, and every method's error over a grid.

    python benchmarks/mean.py [--json] [--fresh SEED [--cells 48]]

The large one: d = 1e7, n = 1e5, s = 50, in a fresh process. The grid: rows that cancel, that share popular
coordinates, that are all alike, or lie in blocks (the paper's hard case); errors are means over draws, on the
same noise for every method but recovery, and "+-" is the standard error of the ratio before it.

--fresh draws a grid from a seed that no rule was tuned on: n, d, s, epsilon and delta at random in wide ranges,
rows of twelve kinds (heavy tails, identical rows, clusters, rows that cancel exactly, rows far shorter than their
bound, ...). `auto` is compared with every single method, and with answering zero wherever the mean is at least
half a standard deviation of the noise long; elsewhere (there recovery answers zero too, and is left out) "kept"
says how often it was anything but zero.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse
from timing import show

from sparsedp.convex import SparseMean, private_sparse_mean
from sparsedp.convex.clip import clip_rows
from sparsedp.convex.mean.recovery import few_enough, measurement_count
from sparsedp.randomness import NoiseSource

METHODS = ("gaussian", "projection", "recovery", "auto")
KINDS = ("cancelling", "popular", "alike", "blocks")
SIZES = ((100, 3000, 3), (400, 20_000, 4), (3000, 20_000, 20), (20_000, 1000, 5))


def rows_of(kind: str, n: int, d: int, s: int, seed: int = 0) -> sparse.csr_array:
    """Rows of norm 1 with s non-zeros: cancelling, popular coordinates, all alike, or in disjoint blocks."""
    generator = np.random.default_rng(seed)
    entries = np.full((n, s), 1 / math.sqrt(s))
    if kind == "cancelling":
        columns = generator.integers(0, d, (n, s))
        entries *= generator.choice([-1.0, 1.0], (n, s))
    elif kind == "popular":
        columns = (generator.zipf(1.3, (n, s)) - 1) % d
    elif kind == "alike":
        columns = np.tile(np.arange(s), (n, 1))
    else:
        blocks = min(d // s, max(1, n // 20))
        columns = generator.integers(0, blocks, n)[:, None] * s + np.arange(s)
    rows = sparse.csr_array((entries.ravel(), columns.ravel(), np.arange(0, n * s + 1, s)), shape=(n, d))
    rows.sum_duplicates()
    return clip_rows(rows, l2=1.0)


def large(method: str, delta: float) -> dict[str, Any]:
    """One mean in this process, whose peak memory is taken before and after."""
    n, d, s = 10**5, 10**7, 50
    rows = rows_of("popular", n, d, s)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start, cpu = time.perf_counter(), time.process_time()
    mean = private_sparse_mean(rows, epsilon=1.0, delta=delta, l2_bound=1.0, sparsity=s, method=method)
    return {
        "method": method,
        "delta": delta,
        "seconds": time.perf_counter() - start,
        "cpu seconds": time.process_time() - cpu,
        "peak MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "MB above the rows": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024,
        "error": float(np.linalg.norm(mean.estimate - rows.mean(axis=0))),
        "bound": mean.error_bound,
    }


def in_a_fresh_process(method: str, delta: float) -> dict[str, Any]:
    command = [sys.executable, __file__, "--large", method, str(delta)]
    output: dict[str, Any] = json.loads(
        subprocess.run(command, capture_output=True, text=True, check=True).stdout
    )
    return output


def grid(most_draws: int = 400) -> list[dict[str, Any]]:
    return [
        {
            "rows": kind,
            **compared(rows_of(kind, n, d, s), s, epsilon, delta, min(most_draws, max(60, 10**6 // d))),
        }
        for (n, d, s), epsilon, delta, kind in itertools.product(SIZES, (0.5, 2.0), (1e-6, 0.0), KINDS)
    ]


def compared(rows: sparse.csr_array, s: int, epsilon: float, delta: float, draws: int) -> dict[str, Any]:
    """The mean error of every method, and that of `auto` over the best single one's."""
    errors = {
        method: found
        for method in (METHODS if delta else ("projection", "auto"))
        if (found := errors_of(rows, method, s, epsilon, delta, 2 if method == "recovery" else draws)).size
    }
    mean = {method: float(found.mean()) for method, found in errors.items()}
    best = min((method for method in mean if method != "auto"), key=lambda method: mean[method])
    ratio = mean["auto"] / mean[best]
    apart = errors["auto"] - ratio * (mean[best] if best == "recovery" else errors[best])
    return {
        "n": rows.shape[0],
        "d": rows.shape[1],
        "s": s,
        "eps": epsilon,
        "delta": delta,
        **{method: mean.get(method, math.nan) for method in METHODS},
        "auto / best": ratio,
        "+-": float(apart.std()) / (math.sqrt(draws) * mean[best]),
    }


def errors_of(
    rows: sparse.csr_array, method: str, s: int, epsilon: float, delta: float, draws: int
) -> np.ndarray:
    """l2 errors over draws; none where recovery would have been the Gaussian mechanism."""
    truth = rows.mean(axis=0)
    means = (
        private_sparse_mean(
            rows,
            epsilon=epsilon,
            delta=delta,
            l2_bound=1.0,
            sparsity=s,
            method=method,
            source=NoiseSource(seed),
        )
        for seed in range(draws)
    )
    return np.array(
        [np.linalg.norm(m.estimate - truth) for m in means if method != "recovery" or m.method == method]
    )


FRESH_KINDS = (
    "pareto",
    "signed pareto",
    "popular",
    "cancelling",
    "paired",
    "identical",
    "identical pareto",
    "blocks",
    "clusters",
    "drift",
    "short",
    "few",
)
RECOVERY_ENTRIES = 4_000_000
"""How large a measurement matrix may be for recovery to be tried in a fresh grid."""


@dataclass(frozen=True)
class Cell:
    """One mean to estimate: public numbers, and rows of norm 1 at most."""

    kind: str
    s: int
    epsilon: float
    delta: float
    rows: sparse.csr_array


def fresh_cells(seed: int, count: int) -> Iterator[Cell]:
    generator = np.random.default_rng(seed)
    for _ in range(count):
        n, d = (int(log_uniform(generator, *ends)) for ends in ((30, 20_000), (100, 30_000)))
        s = int(log_uniform(generator, 1, 64))
        epsilon = log_uniform(generator, 0.1, 8.0)
        delta = 0.0 if generator.random() < 0.4 else 10 ** -generator.uniform(4, 9)
        kind = FRESH_KINDS[int(generator.integers(len(FRESH_KINDS)))]
        yield Cell(kind, s, epsilon, delta, fresh_rows(kind, n, d, s, generator))


def log_uniform(generator: np.random.Generator, low: float, high: float) -> float:
    return math.exp(generator.uniform(math.log(low), math.log(high)))


def fresh_rows(kind: str, n: int, d: int, s: int, generator: np.random.Generator) -> sparse.csr_array:
    columns, values = fresh_entries(kind, n, d, s, generator)
    rows = sparse.coo_array(
        (values.ravel(), (np.repeat(np.arange(n), s), columns.ravel())), shape=(n, d)
    ).tocsr()
    norms = np.maximum(np.sqrt(rows.power(2).sum(axis=1)), 1e-300)
    if kind == "short":
        lengths = np.minimum(1.0, norms)
    else:  # in a quarter of the cells the bound is a loose one
        lengths = log_uniform(generator, 0.1, 1.0) if generator.random() < 0.25 else 1.0
    return clip_rows(sparse.csr_array(sparse.diags_array(lengths / norms) @ rows), l2=1.0)


def fresh_entries(
    kind: str, n: int, d: int, s: int, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Columns and values, s a row."""
    columns, values = generator.integers(0, d, (n, s)), np.ones((n, s))
    signs = generator.choice([-1.0, 1.0], (n, s))
    zipf = (generator.zipf(generator.uniform(1.1, 2.0), (n, s)) - 1) % d
    same = np.tile(generator.permutation(d)[:s], (n, 1))
    if kind == "pareto":
        values = generator.pareto(generator.uniform(0.8, 2.5), (n, s)) + 0.01
    elif kind == "signed pareto":
        columns, values = zipf, signs * (generator.pareto(generator.uniform(0.8, 2.5), (n, s)) + 0.01)
    elif kind == "popular":
        columns = zipf
    elif kind == "cancelling":
        values = signs
    elif kind == "paired":  # every row and its negative: the mean is zero
        half = n // 2
        values = generator.standard_normal((n, s))
        columns[half : 2 * half], values[half : 2 * half] = columns[:half], -values[:half]
        values[2 * half :] = 0.0
    elif kind == "identical":
        columns = same
    elif kind == "identical pareto":
        columns, values = same, np.tile(generator.pareto(1.5, s) + 0.05, (n, 1))
    elif kind == "blocks":
        blocks = min(d // s, int(log_uniform(generator, 1, max(2.0, n / 4))))
        columns = generator.integers(0, blocks, n)[:, None] * s + np.arange(s)
    elif kind == "clusters":
        k = int(generator.integers(2, 9))
        which = generator.integers(0, k, n)
        columns = np.stack([generator.permutation(d)[:s] for _ in range(k)])[which]
        values = (generator.exponential(1.0, (k, s)) * generator.choice([-1.0, 1.0], (k, s)))[which]
    elif kind == "drift":
        pool = generator.permutation(d)[: 2 * s]
        columns = pool[generator.integers(0, pool.size, (n, s))]
        values = generator.standard_normal((n, s)) + generator.uniform(0.0, 1.5)
    elif kind == "short":
        values = log_uniform(generator, 0.03, 1.0) * np.where(generator.random((n, s)) < 0.8, 1.0, -1.0)
        columns, values = zipf, values / math.sqrt(s)
    else:  # "few": fewer non-zeros than s says
        columns = zipf
        values[:, max(1, int(s * generator.uniform(0.05, 0.5))) :] = 0.0
    return columns, values


def fresh(seed: int, count: int) -> list[dict[str, Any]]:
    results = []
    for cell in fresh_cells(seed, count):
        results.append(judged(cell))
        print(f"{len(results)} of {count} cells", file=sys.stderr, flush=True)
    return results


def judged(cell: Cell, most_draws: int = 1000) -> dict[str, Any]:
    """`auto` beside every single method, and beside zero."""
    (n, d), truth = cell.rows.shape, cell.rows.mean(axis=0)
    draws = min(most_draws, max(150, 2 * 10**6 // d))
    methods = ["projection", "auto", *(["gaussian"] if cell.delta else [])]
    errors, kept = {}, 0
    for method in methods:
        found = [private_mean(cell, method, seed) for seed in range(draws)]
        errors[method] = np.array([np.linalg.norm(each.estimate - truth) for each in found])
        if method == "auto":
            kept = sum(each.method != "zero" for each in found)
            noise = found[0].noise_scale * (1.0 if cell.delta else math.sqrt(2))
    means = {method: float(each.mean()) for method, each in errors.items()}
    if cell.delta:
        m = measurement_count(n, d, cell.s, cell.epsilon, cell.delta)
        if few_enough(m, d) and m * d <= RECOVERY_ENTRIES:
            tried = [private_mean(cell, "recovery", seed).estimate - truth for seed in range(3)]
            means["recovery"] = float(np.mean(np.linalg.norm(tried, axis=1)))
    zero = float(np.linalg.norm(truth))
    rivals = {method: mean for method, mean in means.items() if method != "auto"}
    if zero >= 0.5 * noise:
        rivals["zero"] = zero
    else:  # recovery answers zero there
        rivals.pop("recovery", None)
    best = min(rivals, key=lambda method: rivals[method])
    ratio = means["auto"] / rivals[best]
    apart = errors["auto"] - ratio * (errors[best] if best in errors else rivals[best])
    return {
        "rows": cell.kind,
        "n": n,
        "d": d,
        "s": cell.s,
        "eps": round(cell.epsilon, 3),
        "delta": cell.delta,
        "noise": noise,
        "zero": zero,
        **{method: means.get(method, math.nan) for method in METHODS},
        "best": best,
        "auto / best": ratio,
        "+-": float(apart.std()) / (math.sqrt(draws) * rivals[best]),
        "kept": kept / draws,
    }


def private_mean(cell: Cell, method: str, seed: int) -> SparseMean:
    return private_sparse_mean(
        cell.rows,
        epsilon=cell.epsilon,
        delta=cell.delta,
        l2_bound=1.0,
        sparsity=cell.s,
        method=method,
        source=NoiseSource(seed),
    )


def run() -> list[dict[str, Any]]:
    return [in_a_fresh_process(method, delta) for method in ("projection", "auto") for delta in (1e-6, 0.0)]


def main() -> None:
    if "--large" in sys.argv:
        at = sys.argv.index("--large")
        print(json.dumps(large(sys.argv[at + 1], float(sys.argv[at + 2]))))
        return
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--fresh", type=int, metavar="SEED")
    parser.add_argument("--cells", type=int, default=48)
    arguments = parser.parse_args()
    if arguments.fresh is not None:
        results = fresh(arguments.fresh, arguments.cells)
        show(f"mean, fresh grid {arguments.fresh}", results)
        print(f"worst auto / best: {max(row['auto / best'] for row in results):.3f}", file=sys.stderr)
        return
    show("mean, large", run())
    show("mean, grid", grid())


if __name__ == "__main__":
    main()
