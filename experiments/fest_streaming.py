"""Section 4.3, Figure 5, Figure 6 and Table 5 of FEST: training period by period on data that drifts.

Flights by week, tennis by year, generated clicks by day. FEST takes its frequencies from the first period,
from all periods (which must wait for the last one), or from their running sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import polars as pl
from fest_data import QUICK_STREAM, STREAMS
from fest_studies import DataSet, runs_of, write_study

from sparsedp.report.figures import reduction_at_loss
from sparsedp.report.figures_tables import streaming

EPSILONS = [1.0, 3.0, 8.0]
LEAD = (
    "AUC on all later rows after training on the first periods in order. Epsilon is for "
    "add-or-remove-one example and the model after every step of every period: periods hold disjoint "
    "examples, so the costliest one counts. One seed."
)


def run(out: Path, quick: bool = False, sets: Sequence[DataSet] = STREAMS) -> dict[str, Any]:
    """Train on the earlier periods, evaluate on the later ones, one data set after the other."""
    epsilons = EPSILONS[:1] if quick else EPSILONS
    runs: dict[str, pl.DataFrame] = {}
    tables: dict[str, pl.DataFrame] = {}
    panels: dict[str, go.Figure] = {}
    figures: dict[str, Any] = {}
    for each in [QUICK_STREAM] if quick else [one for one in sets if one.available]:
        found = runs[each.name] = _runs(each, out, epsilons)
        tables[f"{each.name}: {each.words}"] = streaming(found)
        shortest = found.filter(pl.col("period") == next(iter(each.periods)))
        panels[f"{each.name}: shortest period, epsilon {epsilons[0]:g}"] = reduction_at_loss(
            shortest, epsilons[0]
        )
        together = pl.concat(list(runs.values()), how="diagonal_relaxed")
        figures = write_study(out, "Streaming", LEAD, tables, panels, together)
    return figures


def _runs(each: DataSet, out: Path, epsilons: list[float]) -> pl.DataFrame:
    grids = []
    for place, (length, training) in enumerate(each.periods.items()):
        period = {"seed": [0], "period": [length], "train_periods": [training]}
        grids.append(each.default("non-private", **period))
        grids += [each.default(name, **period, epsilon=epsilons) for name in ("dp-sgd", "adafest")]
        if place == 0:  # the sources of FEST's frequencies are compared where they differ most
            first = {**period, "epsilon": epsilons[:1]}
            grids.append(each.default("fest", **first, frequencies=["first", "all", "running"]))
            grids.append(each.default("adafest+", **first))
    return runs_of(each, grids, out)


if __name__ == "__main__":
    run(Path("runs/reproduce/fest-streaming"))
