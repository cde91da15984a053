"""AdaFEST with memory (ours, not the paper's) beside plain AdaFEST and FEST at the same gradient size.

Training is longer than in the other studies, with batches of which rare rows profit: memory needs steps to repeat
in. The generated clicks drift and are trained day by day; the memory stays from one day to the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl

from experiments.common.study import Study
from experiments.fest.data_sets import FLIGHTS, GENERATED, QUICK_STREAM, TENNIS
from experiments.fest.figures import averaged, trade_off
from experiments.fest.runs import DataSet, Grid, data_sets_of, runs_of
from experiments.fest.tables import by_setting

LEAD = (
    "Held-out AUC (flights, tennis) or AUC on later days (generated), and how many times smaller the gradient is than "
    "DP-SGD's. Epsilon is for add-or-remove-one example and the model after every step (DP-SGD with lazy noise: the "
    "final model). Plain AdaFEST is interpolated to the gradient size of each setting with memory."
)
BATCHES: dict[str, dict[float, int]] = {
    "flights": {1.0: 131072, 3.0: 65536},
    "tennis": {1.0: 32768, 3.0: 32768},
    "generated": {1.0: 2048, 3.0: 2048},
    "quick": {1.0: 512},
}
"""Expected batch size by epsilon."""


def _long(each: DataSet, epochs: float, seeds: Sequence[int], **settings: Any) -> DataSet:
    """A data set of the other studies, trained longer; grids and batches are those of this study."""
    longer = {**each.settings, "epochs": epochs, "physical_batch_size": 16384, **settings}
    return replace(each, settings=longer, description=f"{epochs:g} epochs", seeds=seeds)


DATA_SETS = (
    _long(FLIGHTS, 10.0, (0, 1, 2), table_learning_rate=300.0),
    _long(TENNIS, 5.0, (0, 1, 2)),
    replace(GENERATED, source="generated:200000x8", description="by day, one epoch", seeds=(0, 1, 2)),
)
QUICK = replace(QUICK_STREAM, description="3,000 drifting clicks by day, to see that it works")
PLAIN: Grid = {"algorithm": ["adafest"], "noise_ratio": [2.0], "false_positives": [20.0, 500.0, 3000.0]}
REMEMBERING: list[Grid] = [
    {"noise_ratio": [2.0], "memory_false_positives": [1000.0, 5000.0]},
    {"noise_ratio": [5.0], "memory_false_positives": [5000.0]},
]
STREAMED: list[Grid] = [
    {
        "noise_ratio": [2.0],
        "false_positives": [0.01],
        "memory_false_positives": [20.0],
        "memory_share": [0.3],
        "memory_least": [2.0],
    }
]
"""A day has a dozen steps: a share of 0.02 would remember a row for weeks. Here few rows are worth their noise."""
ROWS: dict[str, list[int]] = {
    "flights": [3000, 10000],
    "tennis": [1000, 3000],
    "generated": [300, 1000],
    "quick": [200],
}


def run(study: Study) -> dict[str, Any]:
    """Train plain, remembering and FEST on each data set."""
    written: dict[str, Any] = {}
    for each in data_sets_of(study, DATA_SETS, QUICK):
        found = runs_of(each, _grids(each, study.quick), study)
        tables = {
            f"{each.name}: {each.description}": by_setting(found),
            f"{each.name}: ahead of plain AdaFEST at the same gradient size": ahead_of_plain(found),
        }
        panels = {
            f"{each.name}, epsilon {epsilon:g}": trade_off(found, epsilon)
            for epsilon in found["epsilon"].drop_nulls().unique(maintain_order=True)
        }
        written = study.write("AdaFEST with memory", LEAD, tables, panels, found)
    return written


def _grids(each: DataSet, quick: bool) -> list[Grid]:
    streams = each.source.startswith("generated")
    common: Grid = {"algorithm": ["adafest-memory"], "false_positives": [20.0]}
    remembering: list[Grid] = [common | grid for grid in (STREAMED if streams else REMEMBERING)]
    fest: Grid = {"algorithm": ["fest"], "rows": ROWS[each.name]}
    dense: Grid = {"algorithm": ["dp-sgd" if streams else "lazy"]}
    grids = [PLAIN, *remembering, fest, dense]
    length, training = next(iter(each.periods.items()))
    more: Grid = {"period": [length], "train_periods": [training]} if streams else {}
    seeds = list(each.seeds[:1] if quick else each.seeds)
    return [
        {**grid, **more, "epsilon": [epsilon], "expected_batch_size": [batch], "seed": seeds}
        for epsilon, batch in BATCHES[each.name].items()
        for grid in grids
    ]


def ahead_of_plain(runs: pl.DataFrame) -> pl.DataFrame:
    """Each setting with memory beside plain AdaFEST's AUC at its gradient size: linear in the logarithm of the size,
    the nearest setting's beyond the ends."""
    settings, lines = averaged(runs), []
    for line in settings.filter(pl.col("algorithm") == "adafest-memory").iter_rows(named=True):
        plain = settings.filter(
            (pl.col("algorithm") == "adafest") & (pl.col("epsilon") == line["epsilon"])
        ).sort("gradient_size")
        sizes, aucs = plain["gradient_size"].to_numpy(), plain["auc"].to_numpy()
        at_its_size = float(np.interp(np.log(line["gradient_size"]), np.log(sizes), aucs))
        lines.append(
            {
                "epsilon": line["epsilon"],
                "noise ratio": line["noise_ratio"],
                "remembered by chance": line["memory_false_positives"],
                "reduction": round(line["reduction"], 0),
                "AUC": round(line["auc"], 4),
                "plain AdaFEST there": round(at_its_size, 4),
                "ahead by": round(line["auc"] - at_its_size, 4),
            }
        )
    return pl.DataFrame(lines)
