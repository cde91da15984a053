"""Mechanisms over very many rows: seconds and peak memory for 1e9 rows of which 1e5 are touched.

    python benchmarks/mechanisms.py [--json]

Beside them the dense textbook form of the same selection at 1e7 rows, the size of one hundredth.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.special import ndtri

from sparsedp.mechanisms import (
    exponential_top_k,
    sparse_vector,
    thresholded_counts,
    top_k_gaussian,
    top_k_gumbel,
    top_k_laplace,
)
from sparsedp.randomness import NoiseSource


def run(
    rows: int = 10**9, touched: int = 10**5, k: int = 10**4, rounds: int = 5, dense_rows: int = 10**7
) -> dict[str, Any]:
    stream = NoiseSource().selection
    ids = np.unique(stream.integers(rows, touched))
    counts = np.floor(1.0 / stream.uniform(ids.size))  # a heavy tail, as counts have
    std = 10.0
    threshold = -std * float(ndtri(50.0 / rows))  # 50 false positives expected
    data = (ids, counts, rows)
    work: dict[str, Callable[[], np.ndarray]] = {
        "thresholded_counts": lambda: thresholded_counts(*data, std=std, threshold=threshold, stream=stream),
        "top_k_gaussian": lambda: top_k_gaussian(*data, k=k, std=std, stream=stream),
        "top_k_laplace": lambda: top_k_laplace(*data, k=k, epsilon=0.1, sensitivity=1.0, stream=stream),
        "top_k_gumbel": lambda: top_k_gumbel(*data, k=k, epsilon=0.1, stream=stream),
        "exponential_top_k": lambda: exponential_top_k(
            *data, k=k, epsilon=0.1, sensitivity=1.0, stream=stream
        ),
        "sparse_vector": lambda: sparse_vector(
            *data, threshold=200.0, positives=1000, threshold_scale=5.0, query_scale=10.0, stream=stream
        ),
    }
    dense = np.zeros(dense_rows)
    dense[ids % dense_rows] += counts
    work["dense top-k, 1/100 of the rows"] = lambda: np.argpartition(
        dense + std * stream.normal(dense_rows), dense_rows - k
    )[dense_rows - k :]
    return {
        "rows": rows,
        "touched": int(ids.size),
        "k": k,
        "results": {name: _measure(call, rounds) for name, call in work.items()},
    }


def _measure(call: Callable[[], np.ndarray], rounds: int) -> dict[str, float]:
    call()
    seconds = []
    for _ in range(rounds):
        began = time.perf_counter()
        chosen = call()
        seconds.append(time.perf_counter() - began)
    tracemalloc.start()
    call()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return {"seconds": statistics.median(seconds), "peak_mb": peak / 2**20, "chosen": int(chosen.size)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print JSON only")
    arguments = parser.parse_args()
    result = run()
    if arguments.json:
        print(json.dumps(result, indent=2))
        return
    print(f"{result['rows']:,} rows, {result['touched']:,} touched, k = {result['k']:,}")
    for name, row in result["results"].items():
        print(f"{name:32} {1e3 * row['seconds']:9.1f} ms {row['peak_mb']:8.1f} MB {row['chosen']:8,} chosen")


if __name__ == "__main__":
    main()
