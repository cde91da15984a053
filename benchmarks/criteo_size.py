"""The whole way at the size of Criteo-Kaggle: write clicks, prepare them, train by the recipe, report.

    python benchmarks/criteo_size.py [--json] [--full] [--folder DIR]

Each stage is a process of its own: clock, processor time, peak memory (with the mapped files that it has read), what it
leaves on disk, examples a second, AUC. ``--full`` takes 45 million clicks and hours. With ``--folder`` the files are kept,
and a stage that has ended is not run again. Epsilon is for add-or-remove-one example; the runs are seeded, hence
repeatable and not private.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from timing import show

ROWS, FULL_ROWS = 100_000, 45_000_000
SPARSEDP = (sys.executable, "-m", "sparsedp")
WRITE = (
    "import sys; from sparsedp.data import write_criteo_tsv; write_criteo_tsv(sys.argv[1], int(sys.argv[2]))"
)
ONE_EPOCH = ("--epsilon", "1", "--epochs", "1", "--algorithm")
TRAININGS = {
    "epsilon 1": ("--epsilon", "1"),
    "epsilon 8": ("--epsilon", "8"),
    "one epoch, DP-SGD": (*ONE_EPOCH, "lazy"),
    "one epoch, FEST": (*ONE_EPOCH, "fest"),
    "one epoch, FEST, 1,000 rows": (*ONE_EPOCH, "fest", "--rows", "1000"),
    "one epoch, AdaFEST, 2,000 false positives": (*ONE_EPOCH, "adafest", "--false-positives", "2000"),
    "one epoch, AdaFEST, 1 false positive": (*ONE_EPOCH, "adafest", "--false-positives", "1"),
    "one epoch, AdaFEST, tau 2,000": (*ONE_EPOCH, "adafest", "--threshold", "2000"),
    "one epoch, AdaFEST, tau 20,000": (*ONE_EPOCH, "adafest", "--threshold", "20000"),
    "one epoch, AdaFEST with memory": (*ONE_EPOCH, "adafest-memory"),
}
"""By the recipe; then Figures 3 and 4, one epoch each."""


def stages(folder: Path, rows: int) -> dict[str, tuple[Path, list[str]]]:
    """What each stage leaves, and its command."""
    clicks, prepared = folder / "train.txt.zst", folder / "prepared"
    found: dict[str, tuple[Path, list[str]]] = {
        "write": (clicks, [sys.executable, "-c", WRITE, str(clicks), str(rows)]),
        "prepare": (prepared, [*SPARSEDP, "prepare", "criteo", str(clicks), "--out", str(prepared)]),
    }
    for number, (name, options) in enumerate(TRAININGS.items()):
        out = folder / f"run-{number}"
        found[name] = (
            out,
            [*SPARSEDP, "train", "--data", str(prepared), "--out", str(out), "--seed", "0", *options],
        )
    runs = [str(folder / f"run-{number}") for number in range(len(TRAININGS))]
    page = folder / "report.html"
    found["report"] = (page, [*SPARSEDP, "report", *runs, "--out", str(page)])
    return found


def run(folder: Path, rows: int) -> list[dict[str, Any]]:
    """Every stage that has no figures yet."""
    figures = []
    for name, (out, command) in stages(folder, rows).items():
        kept = folder / f"{name}.json"
        if not kept.exists():
            before = _bytes(folder)
            measured = _measured(name, command, folder / f"{name}.log")
            measured["disk GB"] = (_bytes(folder) - before) / 1e9
            kept.write_text(json.dumps({**measured, **_trained(out, measured["seconds"], rows)}))
        figures.append(json.loads(kept.read_text()))
    return [{name: row.get(name, "") for name in max(figures, key=len)} for row in figures]


def _measured(name: str, command: list[str], log: Path) -> dict[str, Any]:
    """Run a command; its clock, processor time and peak memory."""
    with log.open("w") as said:
        start = time.perf_counter()
        process = os.posix_spawn(
            command[0],
            command,
            os.environ,
            file_actions=[(os.POSIX_SPAWN_DUP2, said.fileno(), 1), (os.POSIX_SPAWN_DUP2, said.fileno(), 2)],
        )
        _, status, usage = os.wait4(process, 0)
    if status != 0:
        raise SystemExit(f"{name} failed:\n{log.read_text()[-2000:]}")
    return {
        "stage": name,
        "seconds": time.perf_counter() - start,
        "processor seconds": usage.ru_utime + usage.ru_stime,
        "peak GB": usage.ru_maxrss * 1024 / 1e9,
    }


def _trained(out: Path, seconds: float, rows: int) -> dict[str, Any]:
    """Rows a second; of a run also its quality, and how many times smaller than DP-SGD's its gradient was."""
    file = out / "result.json"
    if not file.exists():
        return {"rows/s": rows / seconds}
    result = json.loads(file.read_text())
    names = ("steps", "auc", "log_loss", "constant_log_loss", "reduction")
    return {"rows/s": result["examples_per_second"], **{name: result[name] for name in names}}


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--folder", type=Path, help="keep everything here")
    options = parser.parse_args()
    rows = FULL_ROWS if options.full else ROWS
    with tempfile.TemporaryDirectory() as name:
        folder = options.folder or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        show(f"{rows:,} clicks, 26 tables", run(folder, rows))


if __name__ == "__main__":
    main()
