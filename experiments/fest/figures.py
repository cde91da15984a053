"""The FEST paper's figures as functions of sweep results: a polars frame with one line a run.

Every function takes the frame that ``sparsedp.runs.sweep`` returns. Runs
that differ in their seed alone are averaged first; their spread is drawn or tabulated, never dropped.
"""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go
import polars as pl

from sparsedp.runs.algorithms import ALGORITHMS
from sparsedp.runs.sweep import MEASURED

DENSE = tuple(name for name, algorithm in ALGORITHMS.items() if algorithm.dense)
"""DP-SGD and its lazy form, whose final model has the same distribution."""
SPARSE = tuple(name for name, algorithm in ALGORITHMS.items() if algorithm.private and not algorithm.dense)
LOSSES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05)


def averaged(runs: pl.DataFrame) -> pl.DataFrame:
    """One line a setting: means over seeds, ``auc_spread`` (standard deviation; 0 for one seed) and ``seeds``."""
    if runs.is_empty():
        raise ValueError("runs: there is no finished run")
    measured = [name for name in MEASURED if name in runs.columns]
    settings = [name for name in runs.columns if name not in (*measured, "seed", "run", "ledger")]
    return (
        runs.group_by(settings, maintain_order=True)
        .agg(
            *[pl.col(name).mean() for name in measured],
            pl.col("auc").std().fill_null(0.0).alias("auc_spread"),
            pl.len().alias("seeds"),
        )
        .sort("algorithm", *[name for name in ("epsilon",) if name in settings])
    )


def best_reductions(runs: pl.DataFrame, losses: Sequence[float] = LOSSES) -> pl.DataFrame:
    """The largest reduction of the gradient per algorithm, epsilon and tolerated AUC loss.

    The loss is counted from the best DP-SGD setting of the same epsilon. A combination that no setting
    reaches has no line.
    """
    settings = averaged(runs)
    dense = settings.filter(pl.col("algorithm").is_in(DENSE))
    reference = dense.group_by("epsilon").agg(pl.col("auc").max().alias("dense_auc"))
    if reference.is_empty():
        raise ValueError(f"runs: without a run of {' or '.join(DENSE)} there is nothing to compare with")
    others = settings.filter(pl.col("algorithm").is_in(SPARSE)).join(reference, on="epsilon")
    found = [
        others.filter(pl.col("auc") >= pl.col("dense_auc") - loss)
        .group_by("epsilon", "algorithm")
        .agg(pl.col("reduction").max(), pl.col("auc").sort_by("reduction").last())
        .with_columns(loss=pl.lit(loss))
        for loss in losses
    ]
    return pl.concat(found).sort("epsilon", "algorithm", "loss")


def reduction_at_loss(
    runs: pl.DataFrame, epsilon: float, algorithms: Sequence[str] | None = None
) -> go.Figure:
    """Figures 3 to 6: the best reduction against the tolerated AUC loss, one line an algorithm."""
    found = best_reductions(runs).filter(pl.col("epsilon") == epsilon)
    figure = go.Figure()
    for algorithm in algorithms or _ranked(found):
        line = found.filter(pl.col("algorithm") == algorithm)
        if not line.is_empty():
            _curve(figure, line["loss"].to_list(), line["reduction"].to_list(), algorithm)
    figure.update_xaxes(type="log", title="tolerated AUC loss against the best DP-SGD")
    return figure.update_yaxes(type="log", title="gradient size reduction")


def trade_off(runs: pl.DataFrame, epsilon: float) -> go.Figure:
    """Figure 8: every setting as a point, gradient size reduction against AUC."""
    settings = averaged(runs).filter(pl.col("epsilon") == epsilon)
    figure = go.Figure()
    for algorithm in _ranked(settings):
        points = settings.filter(pl.col("algorithm") == algorithm)
        _points(figure, points["reduction"].to_list(), points["auc"].to_list(), algorithm)
        figure.data[-1].update(error_y={"type": "data", "array": points["auc_spread"].to_list()})
    _without_privacy(figure, averaged(runs))
    figure.update_xaxes(type="log", title="gradient size reduction")
    return figure.update_yaxes(title="AUC on held-out rows")


def knob_curves(runs: pl.DataFrame, knob: str, value: str = "auc", by: str | None = None) -> go.Figure:
    """Figure 7: ``value`` ("auc" or "gradient_size") against one knob, a line for each value of ``by``."""
    settings = averaged(_with_knob(runs, knob)).sort(knob)
    groups = [((None,), settings)] if by is None else list(settings.group_by(by, maintain_order=True))
    figure = go.Figure()
    for (group,), line in sorted(groups, key=lambda each: each[0][0] or 0):
        name = value.replace("_", " ") if group is None else f"{(by or '').replace('_', ' ')} {group:g}"
        figure.add_scatter(x=line[knob].to_list(), y=line[value].to_list(), name=name, mode="lines+markers")
    tried = settings[knob].unique().sort().to_list()
    figure.update_xaxes(type="log", title=_words(knob), tickvals=tried, ticktext=[f"{x:g}" for x in tried])
    kind = "log" if value == "gradient_size" else "linear"
    return figure.update_yaxes(type=kind, title=_MEANING.get(value, value))


def heat_map(runs: pl.DataFrame, x: str, y: str, value: str = "auc") -> go.Figure:
    """Figure 9: the joint effect of two knobs on ``value``."""
    settings = averaged(_with_knob(_with_knob(runs, x), y))
    columns, lines = settings[x].unique().sort().to_list(), settings[y].unique().sort().to_list()
    known = {(row[x], row[y]): row[value] for row in settings.iter_rows(named=True)}
    cells = [[known.get((column, line)) for column in columns] for line in lines]
    figure = go.Figure(
        go.Heatmap(
            x=[f"{column:g}" for column in columns],
            y=[f"{line:g}" for line in lines],
            z=cells,
            text=[["" if cell is None else _figure_of(cell) for cell in line] for line in cells],
            texttemplate="%{text}",
            colorscale="Viridis",
            colorbar={"title": value.replace("_", " ")},
        )
    )
    figure.update_xaxes(title=_words(x), type="category")
    return figure.update_yaxes(title=_words(y), type="category")


def auc_by_epsilon(runs: pl.DataFrame) -> go.Figure:
    """The best AUC of every algorithm against epsilon, with its spread over seeds."""
    settings = averaged(runs)
    private = settings.filter(pl.col("algorithm") != "non-private")
    best = private.sort("auc").group_by("algorithm", "epsilon", maintain_order=True).last().sort("epsilon")
    figure = go.Figure()
    for algorithm in _ranked(best):
        line = best.filter(pl.col("algorithm") == algorithm)
        _curve(figure, line["epsilon"].to_list(), line["auc"].to_list(), algorithm)
        figure.data[-1].update(error_y={"type": "data", "array": line["auc_spread"].to_list()})
    _without_privacy(figure, settings)
    epsilon_axis(figure, best["epsilon"].unique().sort().to_list())
    return figure.update_yaxes(title="AUC on held-out rows")


def level(figure: go.Figure, auc: float) -> None:
    """The AUC without privacy as a dotted line, visible on light and dark."""
    label = ALGORITHMS["non-private"].label
    figure.add_hline(y=auc, line_dash="dot", line_color="#8a94a3", annotation_text=label)


def epsilon_axis(figure: go.Figure, budgets: Sequence[float]) -> None:
    """A logarithmic axis that names the budgets themselves."""
    figure.update_xaxes(type="log", title="epsilon (add-or-remove-one example)")
    figure.update_xaxes(tickvals=list(budgets), ticktext=[f"{budget:g}" for budget in budgets])


def sparsity_per_feature(features: pl.DataFrame) -> go.Figure:
    """Figure 1b: the share of zero gradient coordinates, per feature (columns ``feature`` and ``sparsity``)."""
    names, shares = features["feature"].to_list(), features["sparsity"].to_list()
    figure = go.Figure(go.Bar(x=names, y=shares, text=[f"{share:.4f}" for share in shares]))
    figure.update_xaxes(type="category", automargin=True)
    return figure.update_yaxes(title="share of zero gradient coordinates", range=[0, 1])


def _ranked(settings: pl.DataFrame) -> list[str]:
    """The algorithms there are, in the order in which all figures name them."""
    present = set(settings["algorithm"])
    return [name for name in ALGORITHMS if name in present]


def _without_privacy(figure: go.Figure, settings: pl.DataFrame) -> None:
    for auc in settings.filter(pl.col("algorithm") == "non-private")["auc"].top_k(1):
        level(figure, auc)


def _with_knob(runs: pl.DataFrame, knob: str) -> pl.DataFrame:
    if knob not in runs.columns:
        raise ValueError(f"knob: the runs have no setting {knob!r}")
    chosen = runs.filter(pl.col(knob).is_not_null())
    if chosen.is_empty():
        raise ValueError(f"knob: no run sets {knob}")
    return chosen


_MEANING = {"auc": "AUC on held-out rows", "gradient_size": "embedding coordinates with noise, per step"}
_WORDS = {
    "noise_ratio": "noise ratio sigma1 / sigma2",
    "threshold": "threshold tau",
    "contribution_norm": "contribution norm C1",
    "false_positives": "false positives per step",
    "rows": "rows kept (k)",
}


def _figure_of(value: float) -> str:
    return f"{value:.3f}" if value < 10 else f"{value:,.0f}"


def _words(knob: str) -> str:
    return _WORDS.get(knob, knob.replace("_", " "))


def _curve(figure: go.Figure, x: Sequence[float], y: Sequence[float], algorithm: str) -> None:
    _points(figure, x, y, algorithm)
    figure.data[-1].update(mode="lines+markers", line={"color": ALGORITHMS[algorithm].colour})


def _points(figure: go.Figure, x: Sequence[float], y: Sequence[float], algorithm: str) -> None:
    colour = {"color": ALGORITHMS[algorithm].colour}
    figure.add_scatter(x=x, y=y, name=ALGORITHMS[algorithm].label, mode="markers", marker=colour)
