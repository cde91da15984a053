"""What AdaFEST's knobs do to the rows of a step, computed exactly from one batch: no training.

A diagnostic on generated clicks, without noise on the counts themselves: not for private data.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import plotly.graph_objects as go
import polars as pl
from scipy.stats import norm

from experiments.common.study import Study
from sparsedp.accounting import split_sigma
from sparsedp.data import GeneratedClicks

BATCH = 2048
SIGMA = 1.0
RATIOS = (1.0, 2.0, 5.0, 10.0)
THRESHOLDS = (5.0, 10.0, 20.0, 40.0, 80.0, 160.0)
FALSE_POSITIVES = (1.0, 10.0, 100.0, 1000.0, 10000.0)


def run(study: Study) -> dict[str, Any]:
    """Expected survivors by tau, and what share of the lookups they hold by false positives."""
    data = GeneratedClicks(BATCH)
    counts = np.concatenate(
        [np.unique(column, return_counts=True)[1] for column in data.take(range(BATCH)).ids.T]
    )
    sizes = data.schema.vocabulary_sizes
    lines = []
    for ratio in RATIOS:
        sigma1, sigma2 = split_sigma(SIGMA, ratio)
        std = sigma1 * math.sqrt(len(sizes))
        by_rate = [(std * float(norm.isf(each / sum(sizes))), each) for each in FALSE_POSITIVES]
        for tau, false in [*[(tau, None) for tau in THRESHOLDS], *by_rate]:
            passed = norm.sf((tau - counts) / std)
            untouched = (sum(sizes) - counts.size) * norm.sf(tau / std)
            lines.append(
                {
                    "noise ratio": ratio,
                    "gradient noise": sigma2 / SIGMA,
                    "false positives asked": false,
                    "tau": tau,
                    "touched rows": float(passed.sum()),
                    "untouched rows": float(untouched),
                    "share of lookups trained": float((passed * counts).sum() / counts.sum()),
                }
            )
    found = pl.DataFrame(lines, infer_schema_length=None)
    by_tau = found.filter(pl.col("false positives asked").is_null())
    asked = found.filter(pl.col("false positives asked").is_not_null())
    panels = {
        "Rows per step against tau": _lines(
            by_tau, "tau", pl.col("touched rows") + pl.col("untouched rows"), "rows with noise", "log"
        ),
        "What the same false positives buy": _lines(
            asked,
            "false positives asked",
            pl.col("share of lookups trained"),
            "share of lookups trained",
            "linear",
        ),
    }
    lead = (
        f"One batch of {BATCH} generated clicks, 26 features, {sum(sizes):,} rows, total noise multiplier {SIGMA:g}, "
        "C1 = sqrt(26). Expectations over the noise. NOT PRIVATE: a diagnostic."
    )
    return study.write("The knobs of AdaFEST, computed", lead, {"Rows of a step": found}, panels)


def _lines(found: pl.DataFrame, x: str, y: pl.Expr, title: str, kind: str) -> go.Figure:
    figure = go.Figure()
    for (ratio,), line in found.group_by("noise ratio", maintain_order=True):
        figure.add_scatter(
            x=line[x].to_list(),
            y=line.select(y.alias("y"))["y"].to_list(),
            name=f"ratio {ratio:g}",
            mode="lines+markers",
        )
    figure.update_xaxes(type="log", title=x)
    return figure.update_yaxes(type=kind, title=title)
