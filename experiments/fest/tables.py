"""The FEST paper's tables from the results of a sweep, as frames."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from experiments.fest.figures import averaged, best_reductions
from sparsedp.runs.algorithms import ALGORITHMS


def by_setting(runs: pl.DataFrame) -> pl.DataFrame:
    """Every setting a line, every epsilon a column: AUC, its standard deviation over seeds, the reduction."""
    lines = list(averaged(runs).iter_rows(named=True))
    knobs = {name: _varied(lines, name) for name in ALGORITHMS}
    return _by_budget(lines, lambda line: {"setting": _setting(line, knobs[line["algorithm"]])})


def streaming(runs: pl.DataFrame) -> pl.DataFrame:
    """Table 5: AUC on later periods, a line for each algorithm and period length, a column for each epsilon."""

    def key(line: Mapping[str, Any]) -> dict[str, Any]:
        counted = line["frequencies"] if ALGORITHMS[line["algorithm"]].row_set else None
        return {"frequencies": counted, "period": line["period"]}

    return _by_budget(list(averaged(runs).iter_rows(named=True)), key)


def _by_budget(
    lines: Sequence[Mapping[str, Any]], key: Callable[[Mapping[str, Any]], dict[str, Any]]
) -> pl.DataFrame:
    """A line for each algorithm and ``key``, in the order of algorithms, then of falling reduction."""
    ranked = list(ALGORITHMS)
    ordered = sorted(
        lines, key=lambda line: (line["epsilon"] or 0.0, line["period"] or 0, -(line["reduction"] or 0.0))
    )
    columns = dict.fromkeys(_budget(line) for line in ordered)
    table: dict[tuple[Any, ...], dict[str, Any]] = {}
    for line in sorted(ordered, key=lambda line: ranked.index(line["algorithm"])):
        named = {"algorithm": ALGORITHMS[line["algorithm"]].label, **key(line)}
        row = table.setdefault(tuple(named.values()), named | dict.fromkeys(columns))
        row[_budget(line)] = _measured(line)
    return pl.DataFrame(list(table.values()), infer_schema_length=None)


def _budget(line: Mapping[str, Any]) -> str:
    return "no epsilon" if line["epsilon"] is None else f"epsilon {line['epsilon']:g}"


def _varied(lines: Sequence[Mapping[str, Any]], algorithm: str) -> list[str]:
    """The knobs in which settings of an algorithm differ, and the number of rows."""
    own = [line for line in lines if line["algorithm"] == algorithm]
    return [name for name in _KNOBS if name == "rows" or len({line.get(name) for line in own}) > 1]


_KNOBS = {
    "epochs": "epochs",
    "expected_batch_size": "batch",
    "width": "mean width",
    "rows": "k",
    "noise_ratio": "ratio",
    "threshold": "tau",
    "false_positives": "false positives",
    "selection_epsilon": "epsilon a draw",
}


def _setting(line: Mapping[str, Any], names: Sequence[str]) -> str:
    return ", ".join(f"{_KNOBS[name]} {line[name]:,g}" for name in names if line.get(name) is not None)


def _measured(line: Mapping[str, Any]) -> str:
    spread = f" ± {line['auc_spread']:.4f}" if line["seeds"] > 1 else ""
    reduction = "" if line["reduction"] is None else f", {line['reduction']:,.0f}x"
    return f"{line['auc']:.4f}{spread}{reduction}"


def reductions(runs: pl.DataFrame, losses: Sequence[float] = (0.001, 0.005, 0.01, 0.02)) -> pl.DataFrame:
    """Figures 3 and 4 as numbers: the largest reduction within each AUC loss of the best DP-SGD; empty: none."""
    found = best_reductions(runs, losses)
    wide = (
        found.with_columns(
            column=pl.format("within {}", "loss"),
            algorithm=pl.col("algorithm").replace_strict(
                {name: entry.label for name, entry in ALGORITHMS.items()}, return_dtype=pl.String
            ),
            reduction=pl.col("reduction").round(0),
        )
        .pivot(on="column", index=["epsilon", "algorithm"], values="reduction")
        .sort("epsilon", "algorithm")
    )
    columns = [name for name in (f"within {loss}" for loss in losses) if name in wide.columns]
    return wide.select("epsilon", "algorithm", *columns)


def ahead_of_plain(runs: pl.DataFrame) -> pl.DataFrame:
    """Each setting with memory beside plain AdaFEST's AUC at its gradient size: linear in the logarithm of the size,
    the nearest setting's beyond the ends."""
    settings, lines = averaged(runs), []
    for line in settings.filter(pl.col("algorithm") == "adafest-memory").iter_rows(named=True):
        plain = settings.filter(
            (pl.col("algorithm") == "adafest") & (pl.col("epsilon") == line["epsilon"])
        ).sort("gradient_size")
        sizes, aucs = plain["gradient_size"].to_numpy(), plain["auc"].to_numpy()
        at_its_size = float(np.interp(np.log(line["gradient_size"]), np.log(sizes), aucs))
        lines.append(
            {
                "epsilon": line["epsilon"],
                "noise ratio": line["noise_ratio"],
                "false positives": line["false_positives"],
                "reduction": round(line["reduction"], 0),
                "AUC": round(line["auc"], 4),
                "plain AdaFEST there": round(at_its_size, 4),
                "ahead by": round(line["auc"] - at_its_size, 4),
            }
        )
    return pl.DataFrame(lines)


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
