"""AdaFEST with memory (ours, not the paper's) on clicks that drift, beside plain AdaFEST and FEST with running counts.

The generated clicks are trained day by day with the recipe's settings; memory goes from one day to the next.
Without drift it is in the study of the frontier.
"""

from __future__ import annotations

from typing import Any

from experiments.common.study import Study
from experiments.fest.figures import trade_off
from experiments.fest.runs import DataSet, Grid, data_sets_of, recipe_grid, runs_of
from experiments.fest.tables import by_setting
from sparsedp.runs.choosing import plan_for

LEAD = (
    "AUC on later days, and how many times smaller the gradient is than DP-SGD's with the same rows. Epsilon is for "
    "add-or-remove-one example and the model after every step. Settings are the recipe's, but for the sizes named."
)
EPSILONS = (1.0, 3.0)
SIZES: dict[str, tuple[dict[str, float], ...]] = {
    "dp-sgd": ({},),
    "fest": ({}, {"rows": 600}),
    "adafest": ({}, {"false_positives": 680.0}),
    "adafest-memory": ({"memory_steps": 600}, {"memory_steps": 600, "false_positives": 20.0}),
}
"""The recipe's own size first; a day has 100 steps, and memory adds up all six."""
DATA_SETS = (
    DataSet(
        "generated", "by day", "generated:200000x8", {}, {}, tuple(SIZES), seeds=(3, 4, 5), periods={1: 6}
    ),
)
QUICK = DataSet(
    "quick",
    "4,000 drifting clicks by day",
    "generated:4000x4",
    {},
    {},
    ("adafest", "adafest-memory"),
    periods={1: 3},
)


def run(study: Study) -> dict[str, Any]:
    """Train all of them on the stream."""
    written: dict[str, Any] = {}
    for each in data_sets_of(study, DATA_SETS, QUICK):
        found = runs_of(each, grids(each, study.quick), study)
        panels = {
            f"{each.name}, epsilon {epsilon:g}": trade_off(found, epsilon)
            for epsilon in found["epsilon"].drop_nulls().unique(maintain_order=True)
        }
        tables = {f"{each.name}: {each.description}": by_setting(found)}
        written = study.write("AdaFEST with memory", LEAD, tables, panels, found)
    return written


def grids(each: DataSet, quick: bool) -> list[Grid]:
    """Every algorithm at its sizes, with the same periods and seeds."""
    length, training = next(iter(each.periods.items()))
    epsilons, seeds = (EPSILONS[:1], each.seeds[:1]) if quick else (EPSILONS, each.seeds)
    found: list[Grid] = []
    for epsilon in epsilons:
        for algorithm in each.algorithms:
            for size in SIZES[algorithm]:
                asked = {
                    "algorithm": algorithm,
                    "epsilon": epsilon,
                    "period": length,
                    "train_periods": training,
                }
                plan = plan_for(each.source, **asked, **size)
                chosen = {name: getattr(plan.config, name) for name in plan.filled if name in _OF_SELECTIONS}
                found.append({**recipe_grid(plan, {**asked, **chosen, **size}), "seed": list(seeds)})
    return found


_OF_SELECTIONS = ("rows", "noise_ratio", "false_positives", "always_on_rows")
