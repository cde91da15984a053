"""Secure float32 normals against torch.randn: AES-256-CTR and Box-Muller in bulk, into an existing tensor.

    python benchmarks/normals.py [--json]

The ratio is the rate of ``normal_`` over that of ``torch.randn``, interleaved, medians of rounds.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import torch
from timing import interleaved

from sparsedp.randomness import NoiseSource
from sparsedp.randomness.torch_normals import normal_

SIZES = (1_400_000, 16_000_000)
THREADS = (1, 2)


def run(numbers_per_case: int = 60_000_000) -> dict[str, Any]:
    stream = NoiseSource().noise
    before = torch.get_num_threads()
    rows = []
    try:
        for size in SIZES:
            out = torch.empty(size)
            for threads in THREADS:
                torch.set_num_threads(threads)
                seconds = interleaved(
                    {
                        "ours": lambda o=out: normal_(o, stream),
                        "randn": lambda o=out: torch.randn(o.shape, out=o),
                    },
                    rounds=max(5, numbers_per_case // size),
                )
                rows.append(
                    {
                        "size": size,
                        "threads": threads,
                        "torch.randn, millions a second": size / seconds["randn"] / 1e6,
                        "secure, millions a second": size / seconds["ours"] / 1e6,
                        "ratio": seconds["randn"] / seconds["ours"],
                    }
                )
    finally:
        torch.set_num_threads(before)
    return {"normals": rows}


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
    print(f"{'numbers':>12} {'threads':>8} {'torch.randn M/s':>16} {'secure M/s':>12} {'ratio':>7}")
    for row in result["normals"]:
        randn, ours = row["torch.randn, millions a second"], row["secure, millions a second"]
        print(f"{row['size']:>12,} {row['threads']:>8} {randn:>16.0f} {ours:>12.0f} {row['ratio']:>7.2f}")


if __name__ == "__main__":
    main()
