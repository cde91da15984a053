"""Prepared visits of users over days, and runs that protect the users."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from sparsedp.data import Columns, HashRule, Label, Table, prepare
from sparsedp.runs import RunConfig

ROWS_PER_USER, DAYS = 8, 4


def prepare_visits(folder: Path, *, regular: bool = False) -> Path:
    """60 users of up to 8 rows on four days; day 2 has fewer users than the others.

    ``regular``: 45 users of two rows on each day, so that a step of any day costs the same.
    """
    rng = np.random.default_rng(1)
    day = np.repeat(np.arange(DAYS), 90 if regular else [160, 160, 60, 160])
    who = np.where(day == 2, rng.integers(0, 40, day.size), rng.integers(0, 60, day.size))
    if regular:
        who = np.arange(day.size) % 45
    frame = pl.DataFrame({"who": who, "day": day, "item": rng.integers(0, 900, day.size)})
    frame = frame.with_columns(x=rng.random(day.size)).with_columns(y=(pl.col("x") > 0.5).cast(int))
    frame.write_csv(folder / "visits.csv")
    columns = Columns(
        label=Label.parse("y"),
        categorical=("item",),
        numeric=("x",),
        user="who",
        rows_per_user=ROWS_PER_USER,
        time="day",
    )
    prepare(Table.of([folder / "visits.csv"], columns), folder / "data", {"item": HashRule(400)})
    return folder / "data"


def visits_config(data: Path, algorithm: str = "dp-sgd", **changes: Any) -> RunConfig:
    """A stream over the days that protects users: three days train."""
    fields: dict[str, Any] = {
        "data": str(data),
        "algorithm": algorithm,
        "unit": "user",
        "period": 1,
        "expected_batch_size": 15,
        "epochs": 1,
        "max_grad_norm": 1.0,
        "learning_rate": 0.1,
        "optimizer": "sgd",
        "table_learning_rate": 1.0,
        "table_optimizer": "sgd",
        "model_options": {"hidden": [4], "dims": [2]},
        "seed": 1,
        "always_on_rows": 0,
        "fest_mu": 0.5,
    }
    if algorithm != "non-private":
        fields["epsilon"] = 4.0
    if algorithm in ("fest", "adafest+"):
        fields["rows"] = 60
    return RunConfig.parse({**fields, **changes})
