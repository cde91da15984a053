"""Figures 7 and 9 of FEST: what the noise ratio, the threshold tau and C1 do to AUC and gradient size."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import plotly.graph_objects as go
import polars as pl

from experiments.common.study import Study
from experiments.fest.data_sets import FLIGHTS, GENERATED, QUICK
from experiments.fest.figures import averaged, heat_map, knob_curves
from experiments.fest.runs import DataSet, Grid, data_sets_of, runs_of

EPSILON = 1.0
DATA_SETS = (FLIGHTS, replace(GENERATED, seeds=(0,)))
LEAD = (
    f"AdaFEST at epsilon {EPSILON:g} (add-or-remove-one example, the model after every step); means over "
    "seeds: two on flights, one on the others."
)
JOINT: Grid = {"noise_ratio": [1.0, 2.0, 5.0, 10.0], "threshold": [20.0, 40.0, 80.0, 160.0, 320.0]}
# At a fixed number of false positives tau follows the map's noise, so that C1 acts by clipping alone.
NORM: Grid = {"contribution_norm": [1.0, 2.5, 5.0, 15.0], "noise_ratio": [2.0], "false_positives": [20.0]}
QUICK_JOINT: Grid = {"noise_ratio": [1.0, 5.0], "threshold": [20.0, 80.0]}
QUICK_NORM: Grid = {"contribution_norm": [1.0, 4.0], "false_positives": [50.0]}


def run(study: Study) -> dict[str, Any]:
    """Sweep the knobs of AdaFEST around the tuned setting, one data set after the other."""
    joint_grid, norm_grid = (QUICK_JOINT, QUICK_NORM) if study.quick else (JOINT, NORM)
    written: dict[str, Any] = {}
    for each in data_sets_of(study, DATA_SETS, QUICK):
        joint, norm = _sweep(each, joint_grid, study), _sweep(each, norm_grid, study)
        tables = {
            f"{each.name}, noise ratio and tau: {each.description}": _table(
                joint, ["noise_ratio", "threshold"]
            ),
            f"{each.name}, C1 at a fixed number of false positives": _table(norm, ["contribution_norm"]),
        }
        together = pl.concat([joint, norm], how="diagonal_relaxed")
        written = study.write("The knobs of AdaFEST", LEAD, tables, _panels(each.name, joint, norm), together)
    return written


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


def _sweep(each: DataSet, knobs: Grid, study: Study) -> pl.DataFrame:
    grid: Grid = {"algorithm": ["adafest"], "epsilon": [EPSILON], "seed": list(each.seeds), **knobs}
    return runs_of(each, [grid], study)


def _table(runs: pl.DataFrame, knobs: list[str]) -> pl.DataFrame:
    shown = averaged(runs).sort(knobs)
    return shown.select(
        *knobs,
        pl.col("auc").round(4),
        pl.col("auc_spread").round(4),
        pl.col("gradient_size").round(0),
        pl.col("reduction").round(1),
    )
