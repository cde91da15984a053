"""Table 4 of FEST: the time of 100 steps of dense DP-SGD and of AdaFEST against the vocabulary."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import polars as pl
from fest_studies import write_study

from sparsedp.cli.scripts import load
from sparsedp.report.figures_tables import wall_clock

VOCABULARIES = (10**5, 2 * 10**5, 10**6, 2 * 10**6, 5 * 10**6, 10**7)


def run(out: Path, quick: bool = False) -> dict[str, Any]:
    """Time both in one process, by the benchmark of the private step."""
    measure = load("benchmarks", "step-rows").measure
    found = wall_clock([measure(rows, 1) for rows in (VOCABULARIES[:1] if quick else VOCABULARIES)])
    lead = (
        "One embedding layer of width 64, batch 1,024, Zipf ids, one id an example, on one CPU. DP-SGD is "
        "written straight in torch (one torch.randn over the table); AdaFEST is the library's full step, with "
        "its per-example clipping, selection and secure noise."
    )
    return write_study(
        out, "Wall-clock time", lead, {"Seconds for 100 steps": found}, {"Time": _figure(found)}
    )


def _figure(found: pl.DataFrame) -> go.Figure:
    figure = go.Figure()
    for column in ("DP-SGD, 100 steps (s)", "AdaFEST, 100 steps (s)"):
        figure.add_scatter(
            x=found["vocabulary"].to_list(), y=found[column].to_list(), name=column, mode="lines+markers"
        )
    figure.update_xaxes(type="log", title="vocabulary")
    return figure.update_yaxes(type="log", title="seconds")


if __name__ == "__main__":
    run(Path("runs/reproduce/fest-wallclock"))
