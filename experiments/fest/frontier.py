"""Figure 3 again, every algorithm trained well: AUC against gradient size, the papers' algorithms and ours.

Epochs, batch, clip, optimisers and widths are the recipe's: selections train narrow rows where few examples read them,
DP-SGD is shown with full and with narrow rows. Each size of a gradient then has a search of its own at epsilon 1, with a seed
that is not reported: two settings, or four of DP-SGD, which has one size. What won is trained at each epsilon with seeds that
chose nothing. Last, the largest gradient of each algorithm is trained for as many epochs as the recipe gives it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl

from experiments.common import atp_tennis, flights_3m, movielens_small
from experiments.common.study import Study
from experiments.fest.figures import trade_off
from experiments.fest.runs import DataSet, Grid, data_sets_of, recipe_grid, runs_of
from experiments.fest.tables import ahead_of_plain, by_setting, reductions
from sparsedp.planning.widths import WIDTH
from sparsedp.runs.choosing import plan_for, tables_of
from sparsedp.runs.sources import open_data

EPSILONS = (1.0, 3.0, 8.0)
SEARCHED = (1.0, 101)
"""The epsilon and the seed of the search."""
SEEDS = (0, 1, 2)
MOST_EPOCHS = 2.0
"""Of each run but the last ones: the comparison of all takes an hour of one core."""
LEAD = (
    "AUC on held-out rows (a tenth, by hash), and how many times smaller the gradient is than that of DP-SGD with full "
    "rows; selections have the recipe's narrow ones. Epsilon is for add-or-remove-one example; released: the final model "
    "(lazy), the model after every step (the others). AUC: mean over seeds ± standard deviation."
)
RATES = (1.0, 2.0)
"""Times the recipe's learning rate of the tables: what the search of FEST, in turns or not, and of AdaFEST+ tries."""
NOISE_RATIOS = (1.0, 2.0)
"""What the search of AdaFEST tries, with and without memory; AdaFEST+ has the last."""
TABLE_ROWS = 1_319_488
"""Of flights-3m, whose sizes follow; other data sets have them in proportion to the rows of their tables."""
ROWS = {1.0: (5000, 150_000), 3.0: (26_000, 150_000), 8.0: (26_000, 264_000)}
"""FEST's rows by epsilon: the less noise, the rarer the rows that are worth training."""
IN_TURNS = {1.0: (9000, 12_500, 25_000), 3.0: (16_000, 31_000, 62_000), 8.0: (16_000, 37_000, 75_000)}
"""The rows that FEST with rows in turns updates in a step, by epsilon."""
BY_CHANCE = (20, 2000, 10_000, 20_000, 40_000)
"""Untouched rows that pass AdaFEST's threshold in a step."""
REMEMBERED = (300, 2600, 13_000)
"""Untouched rows that pass a review of AdaFEST with memory; the second is the recipe's."""
IN_CHOSEN = 20
"""Untouched rows of those that FEST chose that pass AdaFEST+'s threshold in a step."""
ALGORITHMS = ("lazy", "lazy narrow", "fest", "fest-turns", "adafest", "adafest+", "adafest-memory")
FOR_LAZY = (0.25, 0.5, 1.0, 2.0)
"""Times the recipe's learning rate of the tables: what the search of DP-SGD tries."""
Setting = dict[str, float]
"""What a search varies: ``rate``, times the recipe's learning rate of the tables, or ``noise_ratio``."""


def _trained_well(name: str, source: str) -> DataSet:
    return DataSet(name, f"{name}, trained well", source, {"always_on_rows": 0}, {}, ALGORITHMS, seeds=SEEDS)


DATA_SETS = (
    _trained_well("flights", flights_3m.NAME),
    _trained_well("tennis", atp_tennis.NAME),
    _trained_well("movielens", movielens_small.NAME),
    _trained_well("generated", "generated:200000"),
)
QUICK = DataSet(
    "quick", "4,000 generated clicks", "generated:4000", {"always_on_rows": 0}, {}, ("lazy", "fest")
)


def sizes(algorithm: str, epsilon: float, table_rows: int = TABLE_ROWS) -> list[dict[str, Any]]:
    """The settings that decide how large the gradient is, for tables of so many rows in all."""

    def of(rows: int) -> int:
        return max(1, round(rows * table_rows / TABLE_ROWS))

    if algorithm == "fest":
        return [{"rows": of(rows)} for rows in ROWS[epsilon]]
    if algorithm == "fest-turns":
        return [{"rows": of(rows)} for rows in IN_TURNS[epsilon]]
    if algorithm == "adafest":
        return [{"false_positives": float(of(rows))} for rows in BY_CHANCE]
    if algorithm == "adafest+":
        within = {"noise_ratio": NOISE_RATIOS[-1], "false_positives": float(of(IN_CHOSEN))}
        return [{**within, "rows": of(rows)} for rows in ROWS[epsilon]]
    if algorithm == "adafest-memory":
        return [{"false_positives": float(of(rows))} for rows in REMEMBERED]
    return [{}]


def run(study: Study) -> dict[str, Any]:
    """Search, then train what won on other seeds."""
    written: dict[str, Any] = {}
    for each in data_sets_of(study, DATA_SETS, QUICK):
        source = each.open(study)
        found = None
        for algorithm in each.algorithms:
            tried = runs_of(each, _search(algorithm, source), study)
            chosen = _won(algorithm, source, tried)
            grids = [*_finals(algorithm, source, chosen, study.quick)]
            grids += [] if study.quick else own_epochs(algorithm, source, chosen)
            finals = _with_sizes(runs_of(each, grids, study), algorithm, source)
            found = finals if found is None else pl.concat([found, finals], how="diagonal_relaxed")
            written = study.write("The frontier, trained well", LEAD, *_shown(each, found), found)
    return written


def _shown(each: DataSet, found: pl.DataFrame) -> tuple[dict[str, pl.DataFrame], dict[str, Any]]:
    """The tables and the pictures of one data set."""
    tables = {
        each.description: by_setting(found),
        f"{each.name}: best reduction within an AUC loss of DP-SGD": reductions(found),
        f"{each.name}: memory beside plain AdaFEST at the same gradient size": ahead_of_plain(found),
    }
    panels = {
        f"{each.name}, epsilon {epsilon:g}": trade_off(found, epsilon)
        for epsilon in found["epsilon"].unique(maintain_order=True)
    }
    return {name: table for name, table in tables.items() if not table.is_empty()}, panels


def _with_sizes(runs: pl.DataFrame, algorithm: str, source: str) -> pl.DataFrame:
    """With the mean width of a row, and the size of the gradient against DP-SGD's with full rows."""
    options = plan_for(source, algorithm=_narrow(algorithm), epsilon=SEARCHED[0]).config.model_options
    tables = tables_of(open_data(source).schema, options)
    rows = sum(table.rows for table in tables)
    return runs.with_columns(
        width=pl.lit(sum(table.size for table in tables) / rows),
        reduction=WIDTH * rows / pl.col("gradient_size"),
    )


def _narrow(algorithm: str) -> str:
    """The algorithm whose widths the recipe gives to this one: DP-SGD with narrow rows has those of FEST."""
    return "fest" if algorithm == "lazy narrow" else algorithm


def _search(algorithm: str, source: str) -> list[Grid]:
    epsilon, seed = SEARCHED
    return [
        _grid(algorithm, source, epsilon, size, setting, [seed])
        for size in sizes(algorithm, epsilon, _table_rows(source))
        for setting in _settings(algorithm)
    ]


def _settings(algorithm: str) -> list[Setting]:
    """What the search tries for each size."""
    if algorithm in ("adafest", "adafest-memory"):
        return [{"noise_ratio": ratio} for ratio in NOISE_RATIOS]
    return [{"rate": rate} for rate in (FOR_LAZY if algorithm.startswith("lazy") else RATES)]


def _table_rows(source: str) -> int:
    return sum(open_data(source).schema.vocabulary_sizes)


def _finals(algorithm: str, source: str, won: Mapping[int, Setting], quick: bool) -> list[Grid]:
    epsilons, seeds = (EPSILONS[:1], SEEDS[:1]) if quick else (EPSILONS, SEEDS)
    return [
        _grid(algorithm, source, epsilon, size, won[number], list(seeds))
        for epsilon in epsilons
        for number, size in enumerate(sizes(algorithm, epsilon, _table_rows(source)))
    ]


def own_epochs(algorithm: str, source: str, won: Mapping[int, Setting]) -> list[Grid]:
    """The largest gradient at each epsilon, for the recipe's own number of epochs."""
    grids = []
    for epsilon in EPSILONS:
        options = sizes(algorithm, epsilon, _table_rows(source))
        setting = won[len(options) - 1]
        grids.append(
            _grid(algorithm, source, epsilon, options[-1], setting, list(SEEDS), most_epochs=math.inf)
        )
    return grids


def _grid(
    algorithm: str,
    source: str,
    epsilon: float,
    size: Mapping[str, Any],
    setting: Setting,
    seeds: list[int],
    most_epochs: float = MOST_EPOCHS,
) -> Grid:
    """The recipe's settings, but for the size and what the search varies."""
    varied = {name: value for name, value in setting.items() if name != "rate"}
    asked = {"algorithm": algorithm.split()[0], "epsilon": epsilon, **size, **varied}
    if algorithm == "lazy narrow":
        asked["model_options"] = plan_for(source, algorithm="fest", epsilon=epsilon).config.model_options
    plan = plan_for(source, **asked)
    if plan.config.choices.epochs > most_epochs:
        plan = plan_for(source, **asked, epochs=most_epochs)
    rate = _rate(plan.config.choices.table_learning_rate, setting)
    return {**recipe_grid(plan, {**asked, "table_learning_rate": rate}), "seed": list(seeds)}


def _rate(recipe: float, setting: Setting) -> float:
    return float(f"{recipe * setting.get('rate', 1.0):.3g}")


def _won(algorithm: str, source: str, tried: pl.DataFrame) -> dict[int, Setting]:
    """For each size the setting of the highest AUC in the search; a run that diverged has none."""
    epsilon, seed = SEARCHED
    won = {}
    for number, size in enumerate(sizes(algorithm, epsilon, _table_rows(source))):
        aucs = []
        for setting in _settings(algorithm):
            grid = _grid(algorithm, source, epsilon, size, setting, [seed])
            names = (*size, "table_learning_rate", *(name for name in setting if name != "rate"))
            own = tried.filter(*[pl.col(name) == grid[name][0] for name in names])
            aucs.append(0.0 if own.is_empty() else own["auc"].item())
        won[number] = _settings(algorithm)[int(np.argmax(aucs))]
    return won
