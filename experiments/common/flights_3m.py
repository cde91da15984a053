"""US flights of January to June 2001 (vega-datasets `flights-3m`): was a flight more than 15 minutes late?"""

from __future__ import annotations

from pathlib import Path

import polars as pl

from sparsedp.data.clicks import ClickData
from sparsedp.data.label import Label
from sparsedp.data.preparation import prepare
from sparsedp.data.rules import HashRule
from sparsedp.data.table import Columns, Table

NAME = "flights-3m"
FILE = "flights-3m.parquet"
ROWS = {
    "origin": 4096,
    "destination": 4096,
    "minute": 2**14,
    "origin*destination": 2**15,
    "origin*destination*hour": 2**18,
    "origin*destination*weekday*hour": 10**6,
}
"""Table heights, 1.3 million in all: crossed features make a click-like set of few columns a large one."""


def flights(path: str | Path, out: str | Path) -> ClickData:
    """Prepare the flights in `path` (the file or its folder) in the folder `out`; time is in seconds."""
    file = Path(path) / FILE if Path(path).is_dir() else Path(path)
    date = pl.col("date").dt
    columns = Columns(
        label=Label.parse("delay>15"),
        numeric=("distance",),
        categorical=("origin", "destination", "minute"),
        crosses=tuple(tuple(name.split("*")) for name in ROWS if "*" in name),
        time="date",
        derived={
            "minute": date.hour().cast(pl.Int32) * 60 + date.minute(),
            "hour": date.hour(),
            "weekday": date.weekday(),
        },
    )
    prepare(Table.of([file], columns), out, {name: HashRule(rows) for name, rows in ROWS.items()})
    return ClickData.open(out)
