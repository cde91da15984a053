"""Flights from New York in 2013 (`nycflights13`): did a flight arrive more than 15 minutes late?"""

from __future__ import annotations

from pathlib import Path

from sparsedp.data.clicks import ClickData
from sparsedp.data.label import Label
from sparsedp.data.preparation import prepare
from sparsedp.data.rules import HashRule
from sparsedp.data.table import Columns, Table

NAME = "nycflights13"
FILE = "flights.csv.zst"
CATEGORICAL = ("carrier", "flight", "tailnum", "origin", "dest", "hour", "month")
BUCKETS = 20_000
"""Of every column, as `sparsedp prepare table` does where nothing is said."""


def nyc_flights(path: str | Path, out: str | Path) -> ClickData:
    """Prepare the flights in `path` (the file or its folder) in the folder `out`, in time order."""
    file = Path(path) / FILE if Path(path).is_dir() else Path(path)
    columns = Columns(
        label=Label.parse("arr_delay>15"), numeric=("distance",), categorical=CATEGORICAL, time="time_hour"
    )
    prepare(Table.of([file], columns), out, {name: HashRule(BUCKETS) for name in CATEGORICAL})
    return ClickData.open(out)
