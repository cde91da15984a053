"""`prepare criteo` beside polars' own CSV-to-Parquet on the same file, and its memory as the file grows.

    python benchmarks/prepare.py [--json] [--full]

Both run in one process, interleaved. Memory is the largest resident set of a process of its own; the longer files
are the shortest one several times over. `--full` goes on to 10 million rows.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import polars as pl

from sparsedp.core.criteo import VOCABULARY_SIZES
from sparsedp.data import HashRule, prepare, write_criteo_tsv
from sparsedp.data.criteo import CATEGORIES, Criteo

ROWS = 500_000
ROUNDS = 5
MEMORY_ROWS = (100_000, 1_000_000)
FULL_MEMORY_ROWS = (*MEMORY_ROWS, 10_000_000)

MEASURE = """
import sys
from pathlib import Path
from sparsedp.data import HashRule, prepare
from sparsedp.core.criteo import VOCABULARY_SIZES
from sparsedp.data.criteo import CATEGORIES, Criteo
rules = {name: HashRule(rows) for name, rows in zip(CATEGORIES, VOCABULARY_SIZES)}
prepare(Criteo.of([Path(sys.argv[1])]), sys.argv[2], rules)
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""
# ru_maxrss would not do: it starts from what the parent process held when it forked.


def run(full: bool = False, rows: int = ROWS, rounds: int = ROUNDS) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_criteo_tsv(folder / "train.txt", rows)
        speed = _speed(folder, rounds)
        (folder / "train.txt").unlink()
        memory = _memory(folder, FULL_MEMORY_ROWS if full else MEMORY_ROWS)
    return {
        "rows": rows,
        **speed,
        "ratio": speed["prepare_seconds"] / speed["polars_seconds"],
        "rows_per_second": rows / speed["prepare_seconds"],
        "peak_megabytes": memory,
    }


def _speed(folder: Path, rounds: int) -> dict[str, float]:
    """Median seconds of each, the two taking turns; the first turn warms the page cache and is not counted."""
    source, out, other = folder / "train.txt", folder / "out", folder / "polars.parquet"
    rules = {name: HashRule(rows) for name, rows in zip(CATEGORIES, VOCABULARY_SIZES, strict=True)}

    def ours() -> None:
        shutil.rmtree(out, ignore_errors=True)
        prepare(Criteo.of([source]), out, rules)

    def polars() -> None:
        pl.scan_csv(source, separator="\t", has_header=False).sink_parquet(other)

    seconds: dict[str, list[float]] = {"prepare_seconds": [], "polars_seconds": []}
    for turn in range(rounds + 1):
        for name, work in (("prepare_seconds", ours), ("polars_seconds", polars)):
            start = time.perf_counter()
            work()
            if turn:
                seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(each) for name, each in seconds.items()}


def _memory(folder: Path, sizes: tuple[int, ...]) -> dict[int, float]:
    """Peak megabytes of a process that prepares so many rows."""
    once = folder / "once.txt"
    write_criteo_tsv(once, sizes[0])
    found = {}
    for rows in sizes:
        source = folder / "grown.txt"
        with source.open("wb") as file:
            for _ in range(rows // sizes[0]):
                with once.open("rb") as part:
                    shutil.copyfileobj(part, file, 2**20)
        command = [sys.executable, "-c", MEASURE, str(source), str(folder / f"out-{rows}")]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        found[rows] = int(said) / 1024
        shutil.rmtree(folder / f"out-{rows}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--full", action="store_true")
    options = parser.parse_args()
    result = run(full=options.full)
    if options.json:
        print(json.dumps(result, indent=2))
        return
    print(
        f"{result['rows']:,} rows: prepare {result['prepare_seconds']:.2f} s, polars {result['polars_seconds']:.2f} s"
    )
    print(
        f"ratio {result['ratio']:.2f} (to reach: at most 1.5), {result['rows_per_second']:,.0f} rows a second"
    )
    for rows, megabytes in result["peak_megabytes"].items():
        print(f"{rows:>12,} rows: peak {megabytes:,.0f} MB")


if __name__ == "__main__":
    main()
