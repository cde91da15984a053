"""Figures 3, 4 and 8 of FEST: AUC against gradient size at epsilon 1, 3 and 8 for every algorithm.

All runs are seeded, so that they can be repeated: the printed epsilon is what the same run costs unseeded.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import polars as pl
from fest_data import ALL, QUICK
from fest_studies import DataSet, runs_of, write_study

from sparsedp.report.figures import auc_by_epsilon, reduction_at_loss, trade_off
from sparsedp.report.figures_tables import by_setting, reductions

EPSILONS = [1.0, 3.0, 8.0]
NEAR = ("dp-sgd", "lazy", "fest", "adafest", "adafest+")
"""Drawn closely: beside the other selections and the level without privacy their differences would not show."""
LEAD = (
    "AUC on held-out rows (a tenth, by hash) against the number of embedding coordinates that get noise. "
    "Epsilon is for add-or-remove-one example and the model after every step (lazy: the final model), "
    "delta = 1 / (10 n). AUC: mean over seeds ± standard deviation; then how many times smaller the gradient is."
)


def run(out: Path, quick: bool = False, sets: Sequence[DataSet] = ALL) -> dict[str, Any]:
    """Train everything, one data set after the other, and compare."""
    epsilons = EPSILONS[:1] if quick else EPSILONS
    runs: dict[str, pl.DataFrame] = {}
    tables: dict[str, pl.DataFrame] = {}
    panels: dict[str, go.Figure] = {}
    figures: dict[str, Any] = {}
    for each in [QUICK] if quick else [one for one in sets if one.available]:
        found = runs[each.name] = _runs(each, out, epsilons)
        tables[f"{each.name}: {each.words}"] = by_setting(found)
        tables[f"{each.name}: best reduction within an AUC loss of the best DP-SGD"] = reductions(found)
        first = epsilons[0]
        panels[f"{each.name}: AUC against epsilon"] = auc_by_epsilon(found)
        near = found.filter(pl.col("algorithm").is_in(NEAR))
        panels[f"{each.name}: settings at epsilon {first:g}"] = trade_off(near, first)
        panels[f"{each.name}: best reduction at epsilon {first:g}"] = reduction_at_loss(found, first)
        together = pl.concat(list(runs.values()), how="diagonal_relaxed")
        figures = write_study(out, "Utility against gradient size", LEAD, tables, panels, together)
    return figures


def _runs(each: DataSet, out: Path, epsilons: list[float]) -> pl.DataFrame:
    grids = each.grids("non-private", seed=each.seeds)
    for name in each.algorithms:
        grids += each.grids(name, epsilon=epsilons, seed=each.seeds)
    return runs_of(each, grids, out)


if __name__ == "__main__":
    run(Path("runs/reproduce/fest-utility"))
