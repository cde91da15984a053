"""The ledger: what recording costs a training step, and how long a million recorded steps take to open."""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent

from sparsedp.accounting.ledger import Ledger

STEP = PoissonSampledDpEvent(0.01, GaussianDpEvent(0.8))
STEP_SECONDS = 0.005  # a quick training step; the slower the step, the smaller the part


def run(steps: int = 1_000_000, rounds: int = 5, folder: str | None = None) -> dict[str, Any]:
    """Record `steps` steps with the default batches, then open the file `rounds` times (medians).

    `folder` should be on a disk: in memory an fsync is free.
    """
    with tempfile.TemporaryDirectory(dir=folder) as place:
        path = Path(place) / "steps.ledger"
        began = time.perf_counter()
        with Ledger.open(path, run="benchmark") as ledger:
            step = ledger.step_reserver(STEP)
            for _ in range(steps):
                step()
        a_step = (time.perf_counter() - began) / steps
        opened = []
        for _ in range(rounds):
            began = time.perf_counter()
            ledger = Ledger.read(path)
            opened.append(time.perf_counter() - began)
        assert dict(ledger.events()) == {STEP: steps}
        return {
            "steps": steps,
            "records": sum(1 for line in path.open("rb") if b'"reserve"' in line),
            "file_bytes": path.stat().st_size,
            "open_seconds": statistics.median(opened),
            "microseconds_a_step": 1e6 * a_step,
            "part_of_a_5_ms_step": a_step / STEP_SECONDS,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--folder", help="where to write; default: the system's temporary folder")
    arguments = parser.parse_args()
    result = run(arguments.steps, folder=arguments.folder)
    if arguments.json:
        print(json.dumps(result, indent=2))
        return
    print(f"{result['steps']:,} steps in {result['records']:,} records, {result['file_bytes']:,} bytes")
    print(f"open and verify          {result['open_seconds']:.3f} s      (to reach: under 1 s)")
    print(f"recording a step         {result['microseconds_a_step']:.1f} us")
    print(f"part of a 5 ms step      {result['part_of_a_5_ms_step']:.3%}    (to reach: under 1%)")


if __name__ == "__main__":
    main()
