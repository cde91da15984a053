"""What AdaFEST's knobs do to the rows of a step, computed exactly from one batch: no training.

A diagnostic on generated clicks, without noise on the counts themselves: not for private data.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import plotly.graph_objects as go
import polars as pl
from scipy.stats import norm

from experiments.common.study import Study
from sparsedp.core.criteo import BATCH_SIZE
from sparsedp.core.tables import TableShape
from sparsedp.data import GeneratedClicks
from sparsedp.selection import AdaFEST
from sparsedp.selection.adafest import ContributionMap

SIGMA = 1.0
RATIOS = (1.0, 2.0, 5.0, 10.0)
THRESHOLDS = (5.0, 10.0, 20.0, 40.0, 80.0, 160.0)
FALSE_POSITIVES = (1.0, 10.0, 100.0, 1000.0, 10000.0)


def run(study: Study) -> dict[str, Any]:
    """Expected survivors by tau, and what share of the lookups they hold by false positives."""
    data = GeneratedClicks(BATCH_SIZE)
    counts = np.concatenate(
        [np.unique(column, return_counts=True)[1] for column in data.take(range(BATCH_SIZE)).ids.T]
    )
    sizes = data.schema.vocabulary_sizes
    lines = []
    for ratio in RATIOS:
        by_tau = [(rule_of(sizes, noise_ratio=ratio, threshold=tau), None) for tau in THRESHOLDS]
        by_rate = [
            (rule_of(sizes, noise_ratio=ratio, false_positives=each), each) for each in FALSE_POSITIVES
        ]
        for rule, false in [*by_tau, *by_rate]:
            passed = norm.sf((rule.threshold - counts) / rule.map_std)
            untouched = (sum(sizes) - counts.size) * norm.sf(rule.threshold / rule.map_std)
            lines.append(
                {
                    "noise ratio": ratio,
                    "gradient noise": rule.gradient_noise_multiplier / SIGMA,
                    "false positives asked": false,
                    "tau": rule.threshold,
                    "touched rows": float(passed.sum()),
                    "untouched rows": float(untouched),
                    "share of lookups trained": float((passed * counts).sum() / counts.sum()),
                }
            )
    found = pl.DataFrame(lines, infer_schema_length=None)
    thresholds = found.filter(pl.col("false positives asked").is_null())
    asked = found.filter(pl.col("false positives asked").is_not_null())
    panels = {
        "Rows per step against tau": _lines(
            thresholds, "tau", pl.col("touched rows") + pl.col("untouched rows"), "rows with noise", "log"
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
        f"One batch of {BATCH_SIZE} generated clicks, 26 features, {sum(sizes):,} rows, total noise multiplier {SIGMA:g}, "
        "C1 = sqrt(26). Expectations over the noise. NOT PRIVATE: a diagnostic."
    )
    return study.write("The knobs of AdaFEST, computed", lead, {"Rows of a step": found}, panels)


def rule_of(sizes: tuple[int, ...], **options: float) -> ContributionMap:
    """What a step of AdaFEST with these options does on tables of these sizes, none of them always on."""
    selection = AdaFEST(always_on_rows=0, **options)  # type: ignore[arg-type]
    space = selection.partition_tables([TableShape(f"C{n}", rows, 1) for n, rows in enumerate(sizes, 1)])
    return selection.rule(space, noise_multiplier=SIGMA, max_grad_norm=1.0, expected_batch_size=BATCH_SIZE)


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
