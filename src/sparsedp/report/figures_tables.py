"""The FEST paper's tables from results, as frames; ``markdown`` writes any of them for a document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from sparsedp.report.figures import averaged
from sparsedp.report.run_report import NAMES


def utility(runs: pl.DataFrame) -> pl.DataFrame:
    """AUC against gradient size: the best setting of every algorithm and epsilon, with its spread over seeds."""
    best = averaged(runs).sort("auc").group_by("algorithm", "epsilon", maintain_order=True).last()
    ranked = {name: place for place, name in enumerate(NAMES)}
    return (
        best.sort(
            pl.col("algorithm").replace_strict(ranked, return_dtype=pl.Int64), "epsilon", nulls_last=True
        )
        .with_columns(pl.col("algorithm").replace_strict(NAMES, return_dtype=pl.String))
        .select(
            "algorithm",
            "epsilon",
            pl.col("auc").round(4).alias("AUC"),
            pl.col("auc_spread").round(4).alias("spread"),
            pl.col("log_loss").round(4).alias("log-loss"),
            pl.col("gradient_size").round(0).alias("gradient size"),
            pl.col("reduction").round(1).alias("times smaller"),
            "seeds",
        )
    )


def streaming(runs: pl.DataFrame) -> pl.DataFrame:
    """Table 5: AUC on later periods, a line for each period length and algorithm, a column for each epsilon."""
    settings = averaged(runs).with_columns(
        column=pl.when(pl.col("epsilon").is_null())
        .then(pl.lit("non-private"))
        .otherwise(pl.format("epsilon {}", pl.col("epsilon")))
    )
    labelled = settings.with_columns(
        algorithm=pl.when(pl.col("algorithm") == "fest")
        .then(pl.format("{}, frequencies {}", pl.col("algorithm"), pl.col("frequencies")))
        .otherwise(pl.col("algorithm"))
    )
    return (
        labelled.with_columns(pl.col("auc").round(4))
        .pivot(on="column", index=["algorithm", "period"], values="auc", aggregate_function="max")
        .sort("algorithm", "period")
    )


def wall_clock(rows: Sequence[Mapping[str, Any]]) -> pl.DataFrame:
    """Table 4: seconds for 100 steps of DP-SGD and of AdaFEST, from ``benchmarks/step_rows.py``'s lines."""
    timed = [row for row in rows if "dense DP-SGD ms" in row]
    if not timed:
        raise ValueError("rows: no line has the time of dense DP-SGD")
    return pl.DataFrame(
        [
            {
                "vocabulary": row["rows"],
                "ids per example": row["ids"],
                "DP-SGD, 100 steps (s)": round(row["dense DP-SGD ms"] / 10, 3),
                "AdaFEST, 100 steps (s)": round(row["AdaFEST ms"] / 10, 3),
                "times faster": round(row["dense DP-SGD ms"] / row["AdaFEST ms"], 1),
            }
            for row in timed
        ]
    )


def markdown(frame: pl.DataFrame) -> str:
    """The frame as a Markdown table; missing values stay empty."""
    lines = ["| " + " | ".join(frame.columns) + " |", "|" + "---|" * frame.width]
    lines += ["| " + " | ".join(_cell(value) for value in row) + " |" for row in frame.iter_rows()]
    return "\n".join(lines) + "\n"


def cells(frame: pl.DataFrame) -> list[list[str]]:
    """The frame's values as text, as ``page.table`` wants them."""
    return [[_cell(value) for value in row] for row in frame.iter_rows()]


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
