"""Peak resident memory through AdaFEST steps, above the table itself.

    python benchmarks/memory.py [--json] [--huge]

5M x 64 with 1000 active rows; ``--huge``: a 100M x 16 table trains.
"""

from __future__ import annotations

import resource
import sys

import torch
from step_rows import Model, private
from timing import show

import sparsedp as sdp


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(rows: int, dim: int, active: int = 1000) -> dict[str, float]:
    warm = private(Model(1000, dim), [torch.arange(active).view(-1, 1)], sdp.AdaFEST(always_on_rows=0))
    warm()  # libraries and buffers that any step needs
    model = Model(rows, dim)
    model.table.weight.data.fill_(0.01)  # every page of the table is resident now
    ids = torch.randint(0, rows, (active, 1))
    step = private(model, [ids], sdp.AdaFEST(always_on_rows=0))
    before = peak_mb()
    for _ in range(5):
        step()
    return {
        "rows": rows,
        "dim": dim,
        "table MB": rows * dim * 4 / 2**20,
        "peak MB above it": peak_mb() - before,
    }


def run(huge: bool = False) -> list[dict[str, float]]:
    return [measure(10**8, 16)] if huge else [measure(5 * 10**6, 64)]


def main() -> None:
    show("memory", run("--huge" in sys.argv))


if __name__ == "__main__":
    main()
