"""Figures 3, 4 and 8 of FEST: AUC against gradient size at epsilon 1, 3 and 8 for every algorithm.

All runs are seeded, so that they can be repeated: the printed epsilon is what the same run costs unseeded.
"""

from __future__ import annotations

from typing import Any

import polars as pl

from experiments.common.study import Study
from experiments.fest.data_sets import ALL, QUICK
from experiments.fest.figures import auc_by_epsilon, reduction_at_loss, trade_off
from experiments.fest.runs import DataSet, data_sets_of, runs_of
from experiments.fest.tables import by_setting, reductions

DATA_SETS = ALL
EPSILONS = [1.0, 3.0, 8.0]
NEAR = ("dp-sgd", "lazy", "fest", "adafest", "adafest+")
"""Drawn closely: beside the other selections and the level without privacy their differences would not show."""
LEAD = (
    "AUC on held-out rows (a tenth, by hash) against the number of embedding coordinates that get noise. "
    "Epsilon is for add-or-remove-one example and the model after every step (lazy: the final model), "
    "delta = 1 / (10 n). AUC: mean over seeds ± standard deviation; then how many times smaller the gradient is."
)


def run(study: Study) -> dict[str, Any]:
    """Train everything, one data set after the other, and compare."""
    epsilons = EPSILONS[:1] if study.quick else EPSILONS
    first = epsilons[0]
    written: dict[str, Any] = {}
    for each in data_sets_of(study, DATA_SETS, QUICK):
        found = _runs(each, study, epsilons)
        near = found.filter(pl.col("algorithm").is_in(NEAR))
        tables = {
            f"{each.name}: {each.description}": by_setting(found),
            f"{each.name}: best reduction within an AUC loss of the best DP-SGD": reductions(found),
        }
        panels = {
            f"{each.name}: AUC against epsilon": auc_by_epsilon(found),
            f"{each.name}: settings at epsilon {first:g}": trade_off(near, first),
            f"{each.name}: best reduction at epsilon {first:g}": reduction_at_loss(found, first),
        }
        written = study.write("Utility against gradient size", LEAD, tables, panels, found)
    return written


def _runs(each: DataSet, study: Study, epsilons: list[float]) -> pl.DataFrame:
    grids = each.grids("non-private", seed=each.seeds)
    for name in each.algorithms:
        grids += each.grids(name, epsilon=epsilons, seed=each.seeds)
    return runs_of(each, grids, study)
