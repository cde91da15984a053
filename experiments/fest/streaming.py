"""Section 4.3, Figure 5, Figure 6 and Table 5 of FEST: training period by period on data that drifts.

Flights by week, tennis by year, generated clicks by day. FEST takes its frequencies from the first period,
from all periods (which must wait for the last one), or from their running sum.
"""

from __future__ import annotations

from typing import Any

import polars as pl

from experiments.common.study import Study
from experiments.fest.data_sets import QUICK_STREAM, STREAMS
from experiments.fest.figures import reduction_at_loss
from experiments.fest.runs import DataSet, Grid, data_sets_of, runs_of
from experiments.fest.tables import streaming

DATA_SETS = STREAMS
EPSILONS = [1.0, 3.0, 8.0]
LEAD = (
    "AUC on all later rows after training on the first periods in order. Epsilon is for "
    "add-or-remove-one example and the model after every step of every period: periods hold disjoint "
    "examples, so the costliest one counts. One seed."
)


def run(study: Study) -> dict[str, Any]:
    """Train on the earlier periods, evaluate on the later ones, one data set after the other."""
    epsilons = EPSILONS[:1] if study.quick else EPSILONS
    written: dict[str, Any] = {}
    for each in data_sets_of(study, DATA_SETS, QUICK_STREAM):
        found = _runs(each, study, epsilons)
        tables = {f"{each.name}: {each.description}": streaming(found)}
        shortest = found.filter(pl.col("period") == next(iter(each.periods)))
        panel = reduction_at_loss(shortest, epsilons[0])
        panels = {f"{each.name}: shortest period, epsilon {epsilons[0]:g}": panel}
        written = study.write("Streaming", LEAD, tables, panels, found)
    return written


def _runs(each: DataSet, study: Study, epsilons: list[float]) -> pl.DataFrame:
    grids = []
    for place, (length, training) in enumerate(each.periods.items()):
        period: Grid = {"seed": [0], "period": [length], "train_periods": [training]}
        grids.append(each.default("non-private", **period))
        grids += [each.default(name, **period, epsilon=epsilons) for name in ("dp-sgd", "adafest")]
        if place == 0:  # the sources of FEST's frequencies are compared where they differ most
            first: Grid = {**period, "epsilon": epsilons[:1]}
            grids.append(each.default("fest", **first, frequencies=["first", "all", "running"]))
            grids.append(each.default("adafest+", **first))
    return runs_of(each, grids, study)
