"""Lazy noise: DPSGD(lazy=True) against DPSGD() on a 1e7 x 64 table, one flush per 1000 steps included; and
FEST(lazy=True) on 30,000 rows of the pCTR model against FEST and AdaFEST.

python benchmarks/lazy.py [--json]
"""

from __future__ import annotations

import time

import pctr_step
from step_rows import Model, batches, private
from timing import interleaved, show

import sparsedp as sdp
from sparsedp.data import VOCABULARY_SIZES

STEPS_PER_FLUSH = 1000
CHOSEN = 30_000


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


def run_fest(chosen: int = CHOSEN) -> list[dict[str, float]]:
    """The FEST pCTR model, batch 2048; the chosen rows are the most frequent ones of each table."""
    data = pctr_step.batches()
    most = next(n for n in range(1, chosen) if sum(min(v, n) for v in VOCABULARY_SIZES) >= chosen)
    rows = {f"embeddings.{n}": range(min(v, most)) for n, v in enumerate(VOCABULARY_SIZES)}
    seconds = interleaved(
        {
            "lazy": pctr_step.private(data, sdp.FEST(rows, lazy=True)),
            "fest": pctr_step.private(data, sdp.FEST(rows)),
            "adafest": pctr_step.private(data, sdp.AdaFEST()),
        },
        rounds=20,
        repeats=5,
    )
    return [
        {
            "rows": sum(VOCABULARY_SIZES),
            "chosen": sum(map(len, rows.values())),
            "FEST ms": 1e3 * seconds["fest"],
            "FEST lazy ms": 1e3 * seconds["lazy"],
            "AdaFEST ms": 1e3 * seconds["adafest"],
            "FEST lazy of AdaFEST": seconds["lazy"] / seconds["adafest"],
        }
    ]


def main() -> None:
    show("lazy", run())
    show("lazy-fest", run_fest())


if __name__ == "__main__":
    main()
