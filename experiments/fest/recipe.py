"""Training with nothing but data, model and epsilon: what the recipe's own choices reach.

All runs are seeded, so that they can be repeated: the printed epsilon is what the same run costs unseeded.
The recipe's constants were found on flights-3m, on held-out AUC without noise, the limit of a table's rate on tennis
(seed 1), and how the steps grow on generated-1e6 and flights-3m (seed 0); the other data sets judge them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import polars as pl

from experiments.common import atp_tennis, flights_3m, movielens_small, nycflights13
from experiments.common.study import Study
from experiments.fest.figures import auc_by_epsilon
from experiments.fest.runs import DataSet, Grid, data_sets_of, runs_of
from experiments.fest.tables import by_setting

EPSILONS = [1.0, 3.0, 8.0]
SEEDS = [0, 1, 2]
GRID: list[Grid] = [
    {"expected_batch_size": [256, 1024], "epochs": [1.0, 3.0], "table_learning_rate": [10.0, 50.0]},
    {
        "expected_batch_size": [256],
        "epochs": [1.0, 3.0],
        "optimizer": ["adam"],
        "learning_rate": [0.001],
        "table_optimizer": ["adagrad"],
        "table_learning_rate": [0.03],
    },
]
"""What a practitioner would try without privacy: plain SGD, and Adam with Adagrad for the tables."""
MOST_IN_GRID = 3 * 10**6
"""Examples of a data set on which the grid is run."""
LEAD = (
    "AUC on held-out rows (a tenth, by hash). Epsilon is for add-or-remove-one example and the final model, "
    "delta = 1 / (10 n). Nothing is set but the data and epsilon; the recipe "
    "chooses the rest. AUC: mean over seeds ± standard deviation; then how many times smaller the gradient is."
)


def _untuned(name: str, source: str, seeds: Sequence[int] = SEEDS) -> DataSet:
    """A data set without any setting."""
    return DataSet(name, f"{name}, every setting the recipe's", source, {}, {}, (), seeds=seeds)


DATA_SETS = (
    _untuned("flights", flights_3m.NAME),
    _untuned("tennis", atp_tennis.NAME),
    _untuned("movielens", movielens_small.NAME),
    _untuned("nycflights", nycflights13.NAME),
    *(_untuned(f"generated-1e{n}", f"generated:{10**n}") for n in (4, 5)),
    *(_untuned(f"generated-1e{n}", f"generated:{10**n}", SEEDS[:1]) for n in (6, 7)),
)
QUICK = _untuned("quick", "generated:4000")


def run(study: Study) -> dict[str, Any]:
    """Train by the recipe at each epsilon and without privacy, and without privacy on a small grid."""
    written: dict[str, Any] = {}
    for each in data_sets_of(study, DATA_SETS, QUICK):
        found = runs_of(each, _grids(study, each), study)
        tables = {f"{each.description}": by_setting(found), f"{each.name}: what it chose": _chosen(found)}
        panels = {f"{each.name}: AUC against epsilon": auc_by_epsilon(found)}
        if _examples(each) <= MOST_IN_GRID:
            others = runs_of(replace(each, name=f"{each.name}-grid"), _without_privacy(study), study)
            tables[f"{each.name}: without privacy"] = _beside_the_best(found, others)
        written = study.write("The recipe alone", LEAD, tables, panels, found)
    return written


def _examples(each: DataSet) -> int:
    generated = each.source.startswith("generated:")
    return int(each.source.removeprefix("generated:")) if generated else 0


def _grids(study: Study, each: DataSet) -> list[Grid]:
    """Seed by seed, so that an interrupted study has whole seeds."""
    seeds, epsilons = (SEEDS[:1], EPSILONS[1:2]) if study.quick else (each.seeds, EPSILONS)
    grids: list[Grid] = []
    for seed in seeds:
        grids += [{"epsilon": list(epsilons), "seed": [seed]}, {"algorithm": ["non-private"], "seed": [seed]}]
    return grids


def _without_privacy(study: Study) -> list[Grid]:
    grids = [{name: values[:1] for name, values in GRID[0].items()}] if study.quick else GRID
    return [{"algorithm": ["non-private"], "seed": SEEDS[:1], **grid} for grid in grids]


def _beside_the_best(found: pl.DataFrame, others: pl.DataFrame) -> pl.DataFrame:
    """The recipe without privacy, seed 0, and the best of the grid."""
    ours = found.filter((pl.col("algorithm") == "non-private") & (pl.col("seed") == SEEDS[0]))
    best = others.sort("auc", descending=True).head(1)
    names = ("expected_batch_size", "epochs", "learning_rate", "table_optimizer", "table_learning_rate")
    rows = [("the recipe", ours), (f"the best of {len(others)}", best)]
    return pl.concat(
        [
            frame.select(
                pl.lit(name).alias("settings"), pl.col("auc").round(4), pl.col("log_loss").round(4), *names
            )
            for name, frame in rows
        ],
        how="vertical_relaxed",
    )


def _chosen(found: pl.DataFrame) -> pl.DataFrame:
    """The recipe's choices by epsilon, with log-loss beside that of a constant."""
    columns = ("epochs", "expected_batch_size", "max_grad_norm", "learning_rate", "table_learning_rate")
    return (
        found.group_by("algorithm", "epsilon", *columns)
        .agg(pl.col("log_loss", "constant_log_loss").mean().round(4), pl.col("seconds").mean().round(0))
        .sort("epsilon", nulls_last=True)
    )
