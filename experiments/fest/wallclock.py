"""Table 4 of FEST: the time of 100 steps of dense DP-SGD and of AdaFEST against the vocabulary."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go
import polars as pl

from experiments.common.study import Study
from experiments.fest.tables import wall_clock
from sparsedp.cli.scripts import load

VOCABULARIES = (10**5, 2 * 10**5, 10**6, 2 * 10**6, 5 * 10**6, 10**7)


def run(study: Study) -> dict[str, Any]:
    """Time both in one process, by the benchmark of the private step."""
    measure = load("benchmarks", "step-rows").measure
    found = wall_clock([measure(rows, 1) for rows in (VOCABULARIES[:1] if study.quick else VOCABULARIES)])
    lead = (
        "One embedding layer of width 64, batch 1,024, Zipf ids, one id an example, on one CPU. DP-SGD is "
        "written straight in torch (one torch.randn over the table); AdaFEST is the library's full step, with "
        "its per-example clipping, selection and secure noise."
    )
    return study.write("Wall-clock time", lead, {"Seconds for 100 steps": found}, {"Time": _figure(found)})


def _figure(found: pl.DataFrame) -> go.Figure:
    figure = go.Figure()
    for column in ("DP-SGD, 100 steps (s)", "AdaFEST, 100 steps (s)"):
        figure.add_scatter(
            x=found["vocabulary"].to_list(), y=found[column].to_list(), name=column, mode="lines+markers"
        )
    figure.update_xaxes(type="log", title="vocabulary")
    return figure.update_yaxes(type="log", title="seconds")
