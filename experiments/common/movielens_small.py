"""MovieLens (small): does a user rate a film 4 stars or more? Genres are multi-hot."""

from __future__ import annotations

import tempfile
from pathlib import Path

import polars as pl

from sparsedp.data.clicks import ClickData
from sparsedp.data.label import Label
from sparsedp.data.preparation import prepare
from sparsedp.data.rules import HashRule
from sparsedp.data.table import Columns, Table

NAME = "movielens-small"
RATINGS, MOVIES = "ratings.csv", "movies.csv"
ROWS = {"userId": 1024, "movieId": 2**14, "genres": 64}


def movielens(path: str | Path, out: str | Path) -> ClickData:
    """Prepare `ratings.csv` and `movies.csv` of the folder `path` in the folder `out`, in time order."""
    columns = Columns(
        label=Label.parse("rating>=4"),
        categorical=("userId", "movieId"),
        multi_hot=("genres",),
        time="timestamp",
    )
    movies = pl.scan_csv(Path(path) / MOVIES).select("movieId", "genres")
    ratings = pl.scan_csv(Path(path) / RATINGS).join(movies, on="movieId", how="left", maintain_order="left")
    with tempfile.TemporaryDirectory() as folder:
        joined = Path(folder) / "ratings-with-genres.parquet"
        ratings.collect().sort("timestamp", maintain_order=True).write_parquet(joined)
        prepare(Table.of([joined], columns), out, {name: HashRule(rows) for name, rows in ROWS.items()})
    return ClickData.open(out)
