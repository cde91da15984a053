"""Figures 7 and 9 of FEST: what the noise ratio, the threshold tau and C1 do to AUC and gradient size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
from fest_data import KNOBS, QUICK
from fest_studies import DataSet, Grid, runs_of, write_study

from sparsedp.report.figures import averaged, heat_map, knob_curves

EPSILON = 3.0
RATIOS = [1.0, 2.0, 5.0]
THRESHOLDS = [10.0, 30.0, 100.0]
NORMS = [1.0, 3.5, 10.0]


def run(out: Path, quick: bool = False) -> dict[str, Any]:
    """Sweep the knobs of AdaFEST around the tuned setting."""
    each = QUICK if quick else KNOBS
    ratios, thresholds, norms = (
        ([1.0, 5.0], [20.0, 80.0], [1.0, 4.0]) if quick else (RATIOS, THRESHOLDS, NORMS)
    )
    joint = _sweep(each, {"noise_ratio": ratios, "threshold": thresholds}, out)
    # At a fixed number of false positives tau follows the map's noise, so that C1 acts by clipping alone.
    norm = _sweep(each, {"contribution_norm": norms, "false_positives": [50.0]}, out)
    tables = {
        "Noise ratio and tau": _table(joint, ["noise_ratio", "threshold"]),
        "C1 at 50 false positives per step": _table(norm, ["contribution_norm"]),
    }
    panels = {
        "AUC against tau": knob_curves(joint, "threshold", "auc", by="noise_ratio"),
        "Gradient size against tau": knob_curves(joint, "threshold", "gradient_size", by="noise_ratio"),
        "AUC": heat_map(joint, "threshold", "noise_ratio", "auc"),
        "Gradient size": heat_map(joint, "threshold", "noise_ratio", "gradient_size"),
        "AUC against C1": knob_curves(norm, "contribution_norm", "auc"),
    }
    lead = (
        f"AdaFEST at epsilon {EPSILON:g} (add-or-remove-one example, the model after every step) on "
        f"{each.words}; one seed."
    )
    together = pl.concat([joint, norm], how="diagonal_relaxed")
    return write_study(out, "The knobs of AdaFEST", lead, tables, panels, together)


def _sweep(each: DataSet, knobs: Grid, out: Path) -> pl.DataFrame:
    grid: Grid = {"algorithm": ["adafest"], "epsilon": [EPSILON], "seed": [0], **knobs}
    return runs_of(each, [grid], out)


def _table(runs: pl.DataFrame, knobs: list[str]) -> pl.DataFrame:
    shown = averaged(runs).sort(knobs).select(*knobs, "auc", "gradient_size", "reduction")
    return shown.with_columns(pl.col("auc").round(4), pl.col("reduction").round(1))


if __name__ == "__main__":
    run(Path("runs/reproduce/fest-hyperparameters"))
