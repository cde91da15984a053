"""The claim on flights at epsilon 1 again, on seeds that chose no setting: Figure 3's point at a loss of 0.005 AUC."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fest_data import FLIGHTS, QUICK
from fest_studies import Grid, runs_of, write_study
from fest_utility import LEAD

from sparsedp.report.figures import trade_off
from sparsedp.report.figures_tables import by_setting, reductions

SEEDS = [2, 3, 4, 5, 6]
CHOSEN: list[Grid] = [
    {"algorithm": ["lazy"], "batch_size": [32768, 65536]},
    {"algorithm": ["fest"], "rows": [1000]},
    {"algorithm": ["adafest"], "noise_ratio": [2.0], "false_positives": [20.0]},
    {"algorithm": ["adafest+"], "rows": [3000], "noise_ratio": [5.0], "threshold": [33.0]},
]
"""What seeds 0 and 1 chose."""
QUICKLY: list[Grid] = [{"algorithm": ["dp-sgd"]}, {"algorithm": ["adafest"]}]


def run(out: Path, quick: bool = False) -> dict[str, Any]:
    """Train the chosen settings on other seeds."""
    each = QUICK if quick else FLIGHTS
    seeds = SEEDS[:1] if quick else SEEDS
    grids = [{**grid, "epsilon": [1.0], "seed": list(seeds)} for grid in (QUICKLY if quick else CHOSEN)]
    found = runs_of(each, grids, out)
    tables = {
        f"{each.name}: {each.words}": by_setting(found),
        "Best reduction within an AUC loss of the best DP-SGD": reductions(found),
    }
    panels = {"Settings": trade_off(found, 1.0)}
    return write_study(out, "Chosen settings on other seeds", LEAD, tables, panels, found)


if __name__ == "__main__":
    run(Path("runs/reproduce/fest-seeds"))
