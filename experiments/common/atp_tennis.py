"""Every ATP tennis match: did the first of the two players win?"""

from __future__ import annotations

from pathlib import Path

import polars as pl

from sparsedp.data.clicks import ClickData
from sparsedp.data.label import Label
from sparsedp.data.preparation import prepare
from sparsedp.data.rules import HashRule
from sparsedp.data.table import Columns, Table

NAME = "tennis"
FILE = "matches.csv.zst"
UNRANKED = 2500
ROWS = {
    "first": 2**16,
    "second": 2**16,
    "tourney_name": 2**14,
    "surface": 256,
    "tourney_level": 256,
    "round": 512,
    "first*surface": 2**17,
    "second*surface": 2**17,
    "first*year": 2**18,
    "second*year": 2**18,
}


def tennis(path: str | Path, out: str | Path) -> ClickData:
    """Prepare the matches in `path` (the file or its folder) in the folder `out`; time is the year.

    The file names the winner first. Which player comes first here is decided by a public hash of the match
    that treats the two alike, so the order says nothing about the outcome.
    """
    file = Path(path) / FILE if Path(path).is_dir() else Path(path)
    columns = Columns(
        label=Label.parse("first_won"),
        numeric=("first_rank", "second_rank"),
        categorical=tuple(name for name in ROWS if "*" not in name),
        crosses=tuple(tuple(name.split("*")) for name in ROWS if "*" in name),
        time="year",
        derived=_derived(),
    )
    prepare(Table.of([file], columns), out, {name: HashRule(rows) for name, rows in ROWS.items()})
    return ClickData.open(out)


def _derived() -> dict[str, pl.Expr]:
    winner, loser, number, date = (
        _integer(name) for name in ("winner_id", "loser_id", "match_num", "tourney_date")
    )
    # A linear congruential step modulo the prime 2^31 - 1, symmetric in the players; its parity is the coin.
    coin = ((winner + loser) * 48271 + number * 69621 + date * 16807) % 2147483647 % 2 == 0

    def either(if_first: str, if_second: str) -> pl.Expr:
        return pl.when(coin).then(pl.col(if_first)).otherwise(pl.col(if_second))

    def rank(if_first: str, if_second: str) -> pl.Expr:
        return either(if_first, if_second).cast(pl.Float64, strict=False).fill_null(UNRANKED)

    return {
        "first_won": coin.cast(pl.Int8),
        "first": either("winner_id", "loser_id"),
        "second": either("loser_id", "winner_id"),
        "first_rank": rank("winner_rank", "loser_rank"),
        "second_rank": rank("loser_rank", "winner_rank"),
        "year": date // 10000,
    }


def _integer(name: str) -> pl.Expr:
    return pl.col(name).cast(pl.Int64, strict=False).fill_null(0)
