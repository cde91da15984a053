"""DPSGD(lazy=True) against DPSGD() on a 1e7 x 64 table, one flush per 1000 steps included.

python benchmarks/lazy.py [--json]
"""

from __future__ import annotations

import time

from step_rows import Model, batches, private
from timing import interleaved, show

import sparsedp as sdp

STEPS_PER_FLUSH = 1000


def run(rows: int = 10**7, dim: int = 64) -> list[dict[str, float]]:
    results = []
    for per_example in (1, 26):
        data = batches(rows, per_example)
        model = Model(rows, dim)
        lazy = private(model, data, sdp.DPSGD(lazy=True))
        dense = private(Model(rows, dim), data, sdp.DPSGD())
        seconds = interleaved({"lazy": lazy, "dense": dense}, rounds=3)
        seconds |= interleaved({"lazy": lazy}, rounds=20, repeats=10)
        start = time.perf_counter()
        model.state_dict()  # flushes
        flush = time.perf_counter() - start
        share = seconds["lazy"] + flush / STEPS_PER_FLUSH
        results.append(
            {
                "rows": rows,
                "ids": per_example,
                "dense DP-SGD ms": 1e3 * seconds["dense"],
                "lazy ms": 1e3 * seconds["lazy"],
                "flush s": flush,
                "lazy with its share of the flush ms": 1e3 * share,
                "times faster": seconds["dense"] / share,
            }
        )
    return results


def main() -> None:
    show("lazy", run())


if __name__ == "__main__":
    main()
