"""Training with nothing but data, model and epsilon: what the recipe's own choices reach.

All runs are seeded, so that they can be repeated: the printed epsilon is what the same run costs unseeded.
The recipe's constants were found on flights-3m alone, on held-out AUC without noise; the other data sets judge them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import polars as pl

from experiments.common.study import Study
from experiments.fest.data_sets import FLIGHTS, GENERATED, QUICK, TENNIS
from experiments.fest.figures import auc_by_epsilon
from experiments.fest.runs import DataSet, Grid, data_sets_of, runs_of
from experiments.fest.tables import by_setting

EPSILONS = [1.0, 3.0, 8.0]
SEEDS = [0, 1, 2]
LEAD = (
    "AUC on held-out rows (a tenth, by hash). Epsilon is for add-or-remove-one example and the final model, "
    "delta = 1 / (10 n). No setting is given but the model's widths; the recipe "
    "chooses the rest. AUC: mean over seeds ± standard deviation; then how many times smaller the gradient is."
)


@dataclass(frozen=True, eq=False)
class Untuned(DataSet):
    """A data set of which only the model is set."""

    @classmethod
    def of(cls, tuned: DataSet, name: str | None = None, source: str | None = None) -> Untuned:
        """The same data and model, or more of the generated rows, without the tuned settings."""
        settings = {"model_options": tuned.settings["model_options"]}
        name, source = name or tuned.name, source or tuned.source
        return cls(name, f"{name}, every setting the recipe's", source, settings, {}, ())


DATA_SETS = (
    Untuned.of(FLIGHTS),
    Untuned.of(TENNIS),
    *(Untuned.of(GENERATED, f"generated-1e{n}", f"generated:{10**n}") for n in (4, 5, 6)),
)


def run(study: Study) -> dict[str, Any]:
    """Train by the recipe at each epsilon and without privacy."""
    written: dict[str, Any] = {}
    for each in data_sets_of(study, DATA_SETS, Untuned.of(QUICK)):
        found = runs_of(each, _grids(study, each), study)
        tables = {f"{each.description}": by_setting(found), f"{each.name}: what it chose": _chosen(found)}
        panels = {f"{each.name}: AUC against epsilon": auc_by_epsilon(found)}
        written = study.write("The recipe alone", LEAD, tables, panels, found)
    return written


def _grids(study: Study, each: DataSet) -> list[Grid]:
    """Seed by seed, so that an interrupted study has whole seeds."""
    seeds, epsilons = (SEEDS[:1], EPSILONS[1:2]) if study.quick else (SEEDS, EPSILONS)
    grids: list[Grid] = []
    for seed in seeds:
        grids += [{"epsilon": list(epsilons), "seed": [seed]}, {"algorithm": ["non-private"], "seed": [seed]}]
    return grids


def _chosen(found: pl.DataFrame) -> pl.DataFrame:
    """The recipe's choices by epsilon, with log-loss beside that of a constant."""
    columns = ("epochs", "expected_batch_size", "max_grad_norm", "learning_rate", "table_learning_rate")
    return (
        found.group_by("algorithm", "epsilon", *columns)
        .agg(pl.col("log_loss", "constant_log_loss").mean().round(4), pl.col("seconds").mean().round(0))
        .sort("epsilon", nulls_last=True)
    )
