"""Gaussian noise for a step against torch.randn: lattice noise from AES-256-CTR, into existing arrays.

    python benchmarks/normals.py [--json]

"integers" is the sampler alone, "released" a whole release: float64 sums rounded to the lattice, noise in whole
cells added, divided, written as float32. The ratio is the rate of a release over that of ``torch.randn``; all are
interleaved, medians of rounds.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import numpy as np
import torch
from timing import interleaved

from sparsedp.randomness import NoiseSource, lattice_of, release_on_lattice, rounded_gaussian

SIZES = (1_400_000, 16_000_000)
THREADS = (1, 2)
STD = 1.1


def run(numbers_per_case: int = 60_000_000) -> dict[str, Any]:
    before = torch.get_num_threads()
    try:
        cases = [(size, threads) for size in SIZES for threads in THREADS]
        return {"normals": [_rates(*case, rounds=max(5, numbers_per_case // case[0])) for case in cases]}
    finally:
        torch.set_num_threads(before)


def _rates(size: int, threads: int, rounds: int) -> dict[str, Any]:
    torch.set_num_threads(threads)
    stream = NoiseSource().noise
    lattice = lattice_of(std=STD, sensitivity=1.0, coordinates=size)
    options = {"lattice": lattice, "std": STD, "divisor": 1024.0, "stream": stream, "threads": threads}
    sampler = rounded_gaussian(STD / lattice)
    cells, out = np.empty(size, dtype=np.int64), np.empty(size, dtype=np.float32)
    sums, randn = np.zeros(size), torch.empty(size)
    seconds = interleaved(
        {
            "integers": lambda: sampler.fill(cells, stream, threads),
            "released": lambda: release_on_lattice(out, sums, **options),
            "torch.randn": lambda: torch.randn(randn.shape, out=randn),
        },
        rounds,
    )
    rates = {f"{name}, millions a second": size / each / 1e6 for name, each in seconds.items()}
    return {"size": size, "threads": threads, **rates, "ratio": seconds["torch.randn"] / seconds["released"]}


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
    print(
        f"{'numbers':>12} {'threads':>8} {'torch.randn M/s':>16} {'integers M/s':>13} {'released M/s':>13} ratio"
    )
    for row in result["normals"]:
        rates = [row[f"{name}, millions a second"] for name in ("torch.randn", "integers", "released")]
        print(
            f"{row['size']:>12,} {row['threads']:>8} {rates[0]:>16.0f} {rates[1]:>13.0f} {rates[2]:>13.0f} "
            f"{row['ratio']:>5.2f}"
        )


if __name__ == "__main__":
    main()
