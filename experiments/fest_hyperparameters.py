"""Figures 7 and 9 of FEST: what the noise ratio, the threshold tau and C1 do to AUC and gradient size."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import polars as pl
from fest_data import FLIGHTS, GENERATED, QUICK
from fest_studies import DataSet, Grid, runs_of, write_study

from sparsedp.report.figures import averaged, heat_map, knob_curves

EPSILON = 1.0
SETS = (FLIGHTS, replace(GENERATED, seeds=(0,)))
JOINT: Grid = {"noise_ratio": [1.0, 2.0, 5.0, 10.0], "threshold": [20.0, 40.0, 80.0, 160.0, 320.0]}
# At a fixed number of false positives tau follows the map's noise, so that C1 acts by clipping alone.
NORM: Grid = {"contribution_norm": [1.0, 2.5, 5.0, 15.0], "noise_ratio": [2.0], "false_positives": [20.0]}
QUICK_JOINT: Grid = {"noise_ratio": [1.0, 5.0], "threshold": [20.0, 80.0]}
QUICK_NORM: Grid = {"contribution_norm": [1.0, 4.0], "false_positives": [50.0]}


def run(out: Path, quick: bool = False) -> dict[str, Any]:
    """Sweep the knobs of AdaFEST around the tuned setting, one data set after the other."""
    runs: list[pl.DataFrame] = []
    tables: dict[str, pl.DataFrame] = {}
    panels: dict[str, go.Figure] = {}
    figures: dict[str, Any] = {}
    for each in [QUICK] if quick else [one for one in SETS if one.available]:
        joint = _sweep(each, QUICK_JOINT if quick else JOINT, out)
        norm = _sweep(each, QUICK_NORM if quick else NORM, out)
        runs += [joint, norm]
        tables[f"{each.name}, noise ratio and tau: {each.words}"] = _table(
            joint, ["noise_ratio", "threshold"]
        )
        tables[f"{each.name}, C1 at a fixed number of false positives"] = _table(norm, ["contribution_norm"])
        panels |= _panels(each.name, joint, norm)
        lead = (
            f"AdaFEST at epsilon {EPSILON:g} (add-or-remove-one example, the model after every step); means over "
            "seeds: two on flights, one on the others."
        )
        together = pl.concat(runs, how="diagonal_relaxed")
        figures = write_study(out, "The knobs of AdaFEST", lead, tables, panels, together)
    return figures


def _panels(name: str, joint: pl.DataFrame, norm: pl.DataFrame) -> dict[str, go.Figure]:
    return {
        f"{name}: AUC against tau": knob_curves(joint, "threshold", "auc", by="noise_ratio"),
        f"{name}: gradient size against tau": knob_curves(
            joint, "threshold", "gradient_size", by="noise_ratio"
        ),
        f"{name}: AUC by both": heat_map(joint, "threshold", "noise_ratio", "auc"),
        f"{name}: gradient size by both": heat_map(joint, "threshold", "noise_ratio", "gradient_size"),
        f"{name}: AUC against C1": knob_curves(norm, "contribution_norm", "auc"),
        f"{name}: gradient size against C1": knob_curves(norm, "contribution_norm", "gradient_size"),
    }


def _sweep(each: DataSet, knobs: Grid, out: Path) -> pl.DataFrame:
    grid: Grid = {"algorithm": ["adafest"], "epsilon": [EPSILON], "seed": list(each.seeds), **knobs}
    return runs_of(each, [grid], out)


def _table(runs: pl.DataFrame, knobs: list[str]) -> pl.DataFrame:
    shown = averaged(runs).sort(knobs)
    return shown.select(
        *knobs,
        pl.col("auc").round(4),
        pl.col("auc_spread").round(4),
        pl.col("gradient_size").round(0),
        pl.col("reduction").round(1),
    )


if __name__ == "__main__":
    run(Path("runs/reproduce/fest-hyperparameters"))
