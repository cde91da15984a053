"""A data set of the FEST studies, and sweeps over it that go on where they stopped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from experiments.common import atp_tennis, flights_3m, movielens_small, nycflights13
from experiments.common.study import Study
from sparsedp.runs.choosing import Chosen
from sparsedp.runs.config import Choices
from sparsedp.runs.sweep import Sweep, sweep

_LOADERS = {
    flights_3m.NAME: ([flights_3m.FILE], flights_3m.flights),
    atp_tennis.NAME: ([atp_tennis.FILE], atp_tennis.tennis),
    movielens_small.NAME: ([movielens_small.RATINGS, movielens_small.MOVIES], movielens_small.movielens),
    nycflights13.NAME: ([nycflights13.FILE], nycflights13.nyc_flights),
}
"""The files of each real data set, and what prepares it."""
Grid = dict[str, list[Any]]


@dataclass(frozen=True, eq=False)
class DataSet:
    """A data set, the settings tuned for it, and the knobs of each algorithm."""

    name: str
    description: str
    source: str
    """The name of a real data set, or ``generated:...``."""
    settings: Mapping[str, Any]
    knobs: Mapping[str, Sequence[Mapping[str, Sequence[Any]]]]
    """Per algorithm, grids of the values that its own settings take."""
    algorithms: Sequence[str]
    """The private algorithms to compare."""
    seeds: Sequence[int] = (0, 1)
    periods: Mapping[int, int] = field(default_factory=dict)
    """Lengths of streaming periods in the data's time units, and how many of them train: the same rows for all."""

    def check(self, study: Study) -> None:
        """Refuse if it is absent."""
        if self.source in _LOADERS:
            study.find(self.source, _LOADERS[self.source][0])

    def open(self, study: Study) -> str:
        """The name under which a run opens it; a real data set is prepared (once) in the study's folder."""
        if self.source not in _LOADERS:
            return self.source
        files, load = _LOADERS[self.source]
        folder = study.out / "data" / self.name
        load(study.find(self.source, files), folder)
        return str(folder)

    def grids(self, algorithm: str, **more: Sequence[Any]) -> list[Grid]:
        """The algorithm with all its knobs, and what else varies."""
        return [_grid(algorithm, knobs, more) for knobs in self.knobs.get(algorithm, [{}])]

    def default(self, algorithm: str, **more: Sequence[Any]) -> Grid:
        """The algorithm with the first value of each knob of its first grid, and what else varies."""
        first = self.knobs.get(algorithm, [{}])[0]
        return _grid(algorithm, {name: values[:1] for name, values in first.items()}, more)


def _grid(algorithm: str, *parts: Mapping[str, Sequence[Any]]) -> Grid:
    varied = {name: list(values) for part in parts for name, values in part.items()}
    return {"algorithm": [algorithm], **varied}


def recipe_grid(plan: Chosen, varied: Mapping[str, Any]) -> Grid:
    """A run with the recipe's settings, but for what is given."""
    config = plan.config
    names = [*Choices._fields, "physical_batch_size", "model", "model_options", "read_share_mu"]
    names += [name for name in plan.filled if name in ("fest_mu", "memory_steps", "update_every")]
    settings = {name: [getattr(config, name)] for name in names if getattr(config, name) is not None}
    return {**settings, **{name: [value] for name, value in varied.items()}}


def data_sets_of(study: Study, known: Sequence[DataSet], quick: DataSet) -> list[DataSet]:
    """The data sets that a study runs on; refuses, before anything runs, if one is absent."""
    chosen = [quick] if study.quick else study.choose(known)
    for each in chosen:
        each.check(study)
    return chosen


def runs_of(each: DataSet, grids: Sequence[Grid], study: Study) -> pl.DataFrame:
    """Sweep the grids; finished runs are kept, their weights are not."""
    folder = study.out / each.name

    def forget_weights(done: int, total: int) -> None:
        for weights in folder.glob("runs/*/model.safetensors"):
            weights.unlink()

    # Runs of a study are short: an interrupted one is repeated rather than its large tables stored.
    base = {"data": each.open(study), "checkpoint_every": 10**6, **each.settings}
    found = sweep(Sweep(base, grids), folder, on_progress=forget_weights)
    return found.with_columns(dataset=pl.lit(each.name))
