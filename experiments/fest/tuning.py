"""How the settings of the FEST studies were found: DP-SGD and AdaFEST over the same grid, once each.

Epsilon 1, one epoch, one seed; held-out AUC was looked at without noise, which the epsilon does not cover.
Training without privacy has rates of its own, tried separately: small batches suit it, which noise does not allow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl

from experiments.common.study import Study
from experiments.fest.data_sets import ALL, QUICK
from experiments.fest.figures import trade_off
from experiments.fest.runs import DataSet, Grid, data_sets_of, runs_of
from sparsedp.runs.algorithms import ALGORITHMS

DATA_SETS = ALL
EPSILON = 1.0
COLUMNS = ("expected_batch_size", "max_grad_norm", "learning_rate", "table_learning_rate")
LEAD = (
    "Held-out AUC at epsilon 1 (add-or-remove-one example), one epoch, seed 0: DP-SGD (as lazy, whose final model "
    "has the same distribution) and AdaFEST over the same settings, and training without privacy over its own."
)
Settings = Sequence[tuple[float, ...]]
"""Batch, clip, learning rate of the dense layers, learning rate of the tables."""
GRIDS: dict[str, Settings] = {
    "flights": (
        (8192, 1.0, 0.5, 25.0),
        (16384, 5.0, 0.1, 200.0),
        (32768, 5.0, 0.2, 400.0),
        (32768, 5.0, 0.5, 400.0),
        (32768, 5.0, 1.0, 400.0),
        (32768, 5.0, 0.5, 800.0),
        (32768, 2.0, 0.5, 400.0),
        (32768, 10.0, 0.5, 400.0),
        (65536, 5.0, 0.3, 400.0),
        (65536, 5.0, 0.5, 200.0),
        (65536, 5.0, 0.5, 400.0),
        (65536, 5.0, 0.5, 800.0),
        (65536, 5.0, 1.0, 800.0),
        (131072, 5.0, 1.0, 800.0),
    ),
    "tennis": (
        (8192, 5.0, 0.3, 100.0),
        (16384, 5.0, 0.3, 50.0),
        (16384, 5.0, 0.3, 200.0),
        (16384, 5.0, 1.0, 200.0),
        (8192, 1.0, 0.3, 50.0),
        (16384, 2.0, 0.3, 50.0),
        (16384, 1.0, 0.3, 50.0),
        (16384, 1.0, 0.5, 100.0),
        (16384, 1.0, 1.0, 200.0),
        (32768, 5.0, 0.5, 400.0),
    ),
    "generated": (
        (1024, 5.0, 1.0, 25.0),
        (2048, 5.0, 1.0, 25.0),
        (2048, 5.0, 1.0, 50.0),
        (2048, 5.0, 2.0, 25.0),
        (4096, 5.0, 1.0, 50.0),
        (4096, 5.0, 2.0, 50.0),
        (8192, 5.0, 0.5, 50.0),
        (8192, 5.0, 1.0, 100.0),
        (8192, 2.0, 1.0, 100.0),
        (16384, 5.0, 1.0, 100.0),
    ),
    "quick": ((1024, 5.0, 0.3, 25.0),),
}
WITHOUT_PRIVACY: dict[str, Sequence[tuple[float, ...]]] = {
    "flights": (
        (1024, 0.2, 50.0),
        (2048, 0.2, 50.0),
        (2048, 0.5, 100.0),
        (8192, 0.5, 200.0),
        (8192, 1.0, 400.0),
    ),
    "tennis": ((256, 0.1, 10.0), (1024, 0.1, 10.0), (1024, 0.2, 50.0), (4096, 0.5, 50.0), (4096, 0.5, 200.0)),
    "generated": ((256, 0.1, 5.0), (256, 0.3, 10.0), (256, 0.5, 20.0), (1024, 0.5, 25.0), (1024, 1.0, 50.0)),
    "quick": ((256, 0.3, 10.0),),
}
"""Batch and the two learning rates; nothing is clipped."""


def run(study: Study) -> dict[str, Any]:
    """Train both at every setting of the data set's grid, one data set after the other."""
    written: dict[str, Any] = {}
    for each in data_sets_of(study, DATA_SETS, QUICK):
        found = runs_of(each, _grids(each), study)
        description = each.description.split(", batch")[0]
        tables = {f"{each.name}: {description}": _table(found)}
        panels = {f"{each.name}: settings tried": trade_off(found, EPSILON)}
        written = study.write("Tuning", LEAD, tables, panels, found)
    return written


def _grids(each: DataSet) -> list[Grid]:
    same: Grid = {"seed": [0], "epsilon": [EPSILON]}
    private = [_one(COLUMNS, setting) for setting in GRIDS[each.name]]
    dense = next(name for name in each.algorithms if ALGORITHMS[name].dense)
    plain = [_one((COLUMNS[0], *COLUMNS[2:]), setting) for setting in WITHOUT_PRIVACY[each.name]]
    return [
        *[each.default(name, **same, **setting) for name in (dense, "adafest") for setting in private],
        *[each.default("non-private", **{**setting, "seed": [0]}) for setting in plain],
    ]


def _one(names: Sequence[str], values: tuple[float, ...]) -> Grid:
    return {name: [value] for name, value in zip(names, values, strict=True)}


def _table(found: pl.DataFrame) -> pl.DataFrame:
    return found.select(
        "algorithm",
        *COLUMNS,
        pl.col("auc").round(4),
        pl.col("log_loss").round(4),
        pl.col("reduction").round(0),
    )
