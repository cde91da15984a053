"""AdaFEST with memory (ours, not the paper's) on clicks that drift, beside plain AdaFEST and FEST with running counts.

The generated clicks are trained day by day; the memory stays from one day to the next. Without drift it is in the study of
the frontier.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from experiments.common.study import Study
from experiments.fest.data_sets import GENERATED, QUICK_STREAM
from experiments.fest.figures import trade_off
from experiments.fest.runs import DataSet, Grid, data_sets_of, runs_of
from experiments.fest.tables import ahead_of_plain, by_setting

LEAD = (
    "AUC on later days, and how many times smaller the gradient is than DP-SGD's. Epsilon is for add-or-remove-one example "
    "and the model after every step. Plain AdaFEST is interpolated to the gradient size of each setting with memory."
)
EPSILONS = (1.0, 3.0)
DATA_SETS = (
    replace(GENERATED, source="generated:200000x8", description="by day, one epoch", seeds=(3, 4, 5)),
)
QUICK = replace(QUICK_STREAM, description="4,000 drifting clicks by day, to see that it works")
GRIDS: list[Grid] = [
    {"algorithm": ["adafest"], "noise_ratio": [2.0], "false_positives": [20.0, 500.0, 3000.0]},
    {
        "algorithm": ["adafest-memory"],
        "noise_ratio": [2.0],
        "false_positives": [1.0],
        "memory_steps": [12],
    },
    {"algorithm": ["fest"], "rows": [300, 1000]},
    {"algorithm": ["dp-sgd"]},
]
"""A day has a dozen steps, and what it chose is trained for half a day more."""


def run(study: Study) -> dict[str, Any]:
    """Train plain, remembering and FEST on the stream."""
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
    length, training = next(iter(each.periods.items()))
    epsilons, seeds = (EPSILONS[:1], each.seeds[:1]) if quick else (EPSILONS, each.seeds)
    shared: Grid = {"period": [length], "train_periods": [training], "seed": list(seeds)}
    return [{**grid, **shared, "epsilon": [epsilon]} for epsilon in epsilons for grid in GRIDS]
