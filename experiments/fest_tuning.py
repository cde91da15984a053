"""How the settings of the flights study were found: batch, clip and learning rates first, then AdaFEST's knobs.

Epsilon 1, one epoch, one seed; held-out AUC was looked at without noise, which the epsilon does not cover.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
from fest_data import FLIGHTS, QUICK
from fest_studies import Grid, runs_of, write_study

from sparsedp.report.figures import trade_off

COLUMNS = ("algorithm", "batch_size", "max_grad_norm", "learning_rate", "table_learning_rate")
TRIED = (
    ("adafest", 8192, 1.0, 0.5, 25.0),
    ("lazy", 8192, 1.0, 0.5, 25.0),
    ("adafest", 8192, 5.0, 0.05, 10.0),
    ("adafest", 8192, 5.0, 0.05, 50.0),
    ("adafest", 16384, 5.0, 0.1, 200.0),
    ("adafest", 16384, 5.0, 0.05, 500.0),
    ("lazy", 16384, 5.0, 0.1, 200.0),
    ("lazy", 32768, 5.0, 0.5, 400.0),
)
"""In the order in which they were tried; AdaFEST with its default knobs (noise ratio 5, 50 false positives)."""
SHARPER = (
    ("adafest", 16384, 5.0, 0.1, 200.0, 2.0, 100.0),
    ("adafest", 16384, 2.0, 0.2, 200.0, 2.0, 100.0),
    ("adafest", 16384, 2.0, 0.2, 400.0, 2.0, 100.0),
    ("adafest", 32768, 5.0, 0.2, 400.0, 2.0, 100.0),
    ("adafest", 32768, 5.0, 0.5, 400.0, 2.0, 100.0),
    ("adafest", 32768, 5.0, 1.0, 400.0, 2.0, 20.0),
    ("adafest", 32768, 5.0, 0.5, 400.0, 2.0, 20.0),
)
"""A sharper count: noise ratio and false positives stand last."""


def run(out: Path, quick: bool = False) -> dict[str, Any]:
    """Train every setting that was tried."""
    each = QUICK if quick else FLIGHTS
    grids = [_one(dict(zip(COLUMNS, tried, strict=True))) for tried in TRIED[: 2 if quick else None]]
    knobs = (*COLUMNS, "noise_ratio", "false_positives")
    grids += [_one(dict(zip(knobs, tried, strict=True))) for tried in SHARPER[: 0 if quick else None]]
    found = runs_of(each, grids, out)
    shown = found.select(
        *knobs, pl.col("auc").round(4), pl.col("log_loss").round(4), pl.col("reduction").round(0)
    )
    lead = (
        f"Held-out AUC at epsilon 1 (add-or-remove-one example) on {each.words.split(', batch')[0]}; seed 0."
    )
    panels = {"Settings tried": trade_off(found, 1.0)}
    return write_study(out, "Tuning", lead, {"Settings in the order of trying": shown}, panels, found)


def _one(settings: dict[str, Any]) -> Grid:
    return {name: [value] for name, value in {**settings, "epsilon": 1.0, "seed": 0}.items()}


if __name__ == "__main__":
    run(Path("runs/reproduce/fest-tuning"))
