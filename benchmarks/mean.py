"""private_sparse_mean: a large one in seconds and megabytes, and every method's error over a grid.

    python benchmarks/mean.py [--json]

The large one: d = 1e7, n = 1e5, s = 50, in a fresh process. The grid: rows that cancel, that share popular
coordinates, that are all alike, or lie in blocks (the paper's hard case); errors are means over draws, on the
same noise for every method but recovery, and "+-" is the standard error of the ratio before it.
"""

from __future__ import annotations

import itertools
import json
import math
import resource
import subprocess
import sys
import time
from typing import Any

import numpy as np
from scipy import sparse
from timing import show

from sparsedp.convex import private_sparse_mean
from sparsedp.convex.clip import clip_rows
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


def run() -> list[dict[str, Any]]:
    return [in_a_fresh_process(method, delta) for method in ("projection", "auto") for delta in (1e-6, 0.0)]


def main() -> None:
    if "--large" in sys.argv:
        at = sys.argv.index("--large")
        print(json.dumps(large(sys.argv[at + 1], float(sys.argv[at + 2]))))
        return
    show("mean, large", run())
    show("mean, grid", grid())


if __name__ == "__main__":
    main()
