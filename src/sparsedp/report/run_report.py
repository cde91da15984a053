"""The report of a run, or of several compared: what was trained, what it cost, how good it is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import plotly.graph_objects as go

from sparsedp.accounting import PrivacyStatement
from sparsedp.report.page import Section, paragraph, table, write_page
from sparsedp.runs import ALGORITHMS, RunConfig, RunFolder


@dataclass(frozen=True)
class FinishedRun:
    """A finished run's files, read."""

    config: RunConfig
    result: dict[str, Any]
    metrics: list[dict[str, Any]]

    @classmethod
    def read(cls, path: str | Path) -> FinishedRun:
        """From its folder."""
        folder = RunFolder(path)
        config, result = folder.config(), folder.read_json("result")
        if result is None:
            raise ValueError(f"{path} is not finished; resume it first")
        return cls(config, result, folder.metrics())

    @property
    def name(self) -> str:
        """Its name in the report."""
        epsilon = "" if self.config.epsilon is None else f", epsilon {self.config.epsilon:g}"
        return self.config.method.label + epsilon

    @property
    def statement(self) -> PrivacyStatement | None:
        """What it cost; None without privacy."""
        fields = self.result["statement"]
        return None if fields is None else PrivacyStatement(**{**fields, "notes": tuple(fields["notes"])})


def write_report(paths: Sequence[str | Path], out: str | Path) -> Path:
    """Write the HTML report of one run or of a comparison to ``out``."""
    if not paths:
        raise ValueError("runs: give at least one run's folder")
    runs = [FinishedRun.read(path) for path in paths]
    title = runs[0].name if len(runs) == 1 else f"{len(runs)} runs compared"
    lead = "".join(privacy_card(run) for run in runs)
    sections = [
        Section("What was trained", _settings(runs)),
        Section("Results", _results(runs)),
        *_charts(runs),
        Section("How to read this", _reading()),
    ]
    write_page(Path(out), f"sparsedp: {title}", lead, sections)
    return Path(out)


def privacy_card(run: FinishedRun) -> str:
    """The privacy statement in plain words."""
    statement = run.statement
    if statement is None:
        words = "trained without differential privacy: the model may reveal its training examples."
        return (
            f"<div class=card><strong>{escape(run.name)}</strong><p class=bad>NOT PRIVATE: {words}</p></div>"
        )
    verdict = (
        paragraph(
            f"Whoever sees {statement.released} can hardly tell whether any one {statement.unit} was in the "
            f"training data: adding or removing it changes the probability of anything they may conclude by a "
            f"factor of at most {_factor(statement.epsilon)}, except with probability {statement.delta:.2g}.",
            "good",
        )
        if statement.private
        else paragraph("NOT PRIVATE: " + statement.notes[0], "bad")
    )
    words = paragraph(str(statement), "quiet")
    return f"<div class=card><strong>{escape(run.name)}</strong>{verdict}{words}</div>"


_COMMON = (
    "data",
    "model",
    "epochs",
    "expected_batch_size",
    "max_grad_norm",
    "learning_rate",
    "table_learning_rate",
)
"""The settings that a report shows for every algorithm; its own options come after them."""


def _settings(runs: Sequence[FinishedRun]) -> str:
    """A table of what all runs share, and a table of where they differ."""
    settings = [_settings_of(run) for run in runs]
    names = list(dict.fromkeys(name for each in settings for name in each))
    shared = [name for name in names if len({each.get(name, "") for each in settings}) == 1]
    differing = [name for name in names if name not in shared]
    shared_table = table(["setting", "value"], [[name, settings[0][name]] for name in shared])
    if not differing:
        return shared_table
    rows = [
        [run.name, *[each.get(name, "") for name in differing]]
        for run, each in zip(runs, settings, strict=True)
    ]
    return shared_table + table(["run", *differing], rows)


def _settings_of(run: FinishedRun) -> dict[str, str]:
    options = run.config.method.options
    named = {name: getattr(run.config, name) for name in (*_COMMON, *options)}
    measured = {name: run.result.get(name) for name in ("training_rows", "noise_multiplier")}
    return {
        name.replace("_", " "): value if isinstance(value, str) else _number(value)
        for name, value in (named | measured).items()
        if value is not None
    }


def _results(runs: Sequence[FinishedRun]) -> str:
    header = [
        "run",
        "AUC",
        "log-loss",
        "gradient size",
        "times smaller than DP-SGD",
        "examples/s",
        "epsilon",
        "delta",
    ]
    rows = []
    for run in runs:
        result, statement = run.result, run.statement
        rows.append(
            [
                run.name,
                f"{result['auc']:.4f}",
                f"{result['log_loss']:.4f}{_beside_constant(result)}",
                _number(result["gradient_size"]),
                "" if result["reduction"] is None else f"{result['reduction']:,.1f}",
                _number(result.get("examples_per_second")),
                "none" if statement is None else f"{statement.epsilon:.3g}",
                "" if statement is None else f"{statement.delta:.2g}",
            ]
        )
    note = (
        "AUC and log-loss are measured on held-out rows, without noise: they are not part of the guarantee."
    )
    return table(header, rows) + paragraph(note, "quiet")


def _beside_constant(result: Mapping[str, Any]) -> str:
    """The log-loss of a constant prediction, and whether the model's is worse."""
    constant = result.get("constant_log_loss")
    if constant is None:
        return ""
    return f" (constant: {constant:.4f}{', the model is worse' if result.get('worse_than_constant') else ''})"


def _factor(epsilon: float) -> str:
    """e^epsilon, as a number where it is small enough to mean something."""
    return f"{math.exp(epsilon):.3g} (e^{epsilon:.3g})" if epsilon < 7 else f"e^{epsilon:.3g}"


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 100 else f"{value:.4g}"


def _charts(runs: Sequence[FinishedRun]) -> list[Section]:
    sections = []
    if any(len(run.metrics) > 1 for run in runs):  # one evaluation is no curve
        sections.append(Section("Quality over time", "", _over_time(runs)))
    sparse = [run for run in runs if run.result["gradient_size"]]
    if sparse:
        sections.append(Section("Embedding coordinates that get noise, per step", "", _sizes(sparse)))
        sections.append(Section("Rows with noise per table and step", "", _survivors(sparse)))
    budgets = {run.config.epsilon for run in runs if run.config.epsilon}
    if len(budgets) > 1:
        sections.append(Section("AUC against epsilon", "", auc_against_epsilon(runs)))
    return sections


def _over_time(runs: Sequence[FinishedRun]) -> go.Figure:
    figure = go.Figure()
    for run in runs:
        steps = [record["step"] for record in run.metrics]
        figure.add_scatter(x=steps, y=[r["auc"] for r in run.metrics], name=run.name, mode="lines+markers")
    return figure.update_layout(xaxis_title="step", yaxis_title="AUC on held-out rows")


def _sizes(runs: Sequence[FinishedRun]) -> go.Figure:
    dense = runs[0].result["table_coordinates"]
    names = [*[run.name for run in runs], "dense DP-SGD"]
    sizes = [*[run.result["gradient_size"] for run in runs], dense]
    figure = go.Figure(go.Bar(x=sizes, y=names, orientation="h", text=[f"{size:,.0f}" for size in sizes]))
    return figure.update_layout(xaxis={"type": "log", "title": "coordinates"}, yaxis={"automargin": True})


def _survivors(runs: Sequence[FinishedRun]) -> go.Figure:
    figure = go.Figure()
    for run in runs:
        rows = run.result["rows_per_table"]
        figure.add_bar(x=list(rows), y=list(rows.values()), name=run.name)
    figure.update_layout(
        yaxis={"type": "log", "title": "rows"}, xaxis={"type": "category", "automargin": True}
    )
    return figure


def auc_against_epsilon(runs: Sequence[FinishedRun]) -> go.Figure:
    """One curve for each algorithm; the non-private AUC as a horizontal line."""
    figure = go.Figure()
    by_algorithm: dict[str, list[FinishedRun]] = {}
    for run in runs:
        by_algorithm.setdefault(run.config.method.name, []).append(run)
    for algorithm, group in by_algorithm.items():
        if not ALGORITHMS[algorithm].private:
            level(figure, group[0].result["auc"])
            continue
        group.sort(key=lambda run: run.config.epsilon or 0.0)
        x, y = [run.config.epsilon for run in group], [run.result["auc"] for run in group]
        figure.add_scatter(x=x, y=y, name=ALGORITHMS[algorithm].label, mode="lines+markers")
    epsilon_axis(figure, sorted({run.config.epsilon for run in runs if run.config.epsilon}))
    return figure.update_layout(yaxis_title="AUC on held-out rows")


def level(figure: go.Figure, auc: float) -> None:
    """The AUC without privacy as a dotted line, visible on light and dark."""
    label = ALGORITHMS["non-private"].label
    figure.add_hline(y=auc, line_dash="dot", line_color="#8a94a3", annotation_text=label)


def epsilon_axis(figure: go.Figure, budgets: Sequence[float]) -> None:
    """A logarithmic axis that names the budgets themselves."""
    figure.update_xaxes(type="log", title="epsilon (add-or-remove-one example)")
    figure.update_xaxes(tickvals=list(budgets), ticktext=[f"{budget:g}" for budget in budgets])


def _reading() -> str:
    return paragraph(
        "Epsilon bounds how much the released model can depend on any one example; smaller is more private. "
        "Delta is the probability that the bound may fail. Both hold for everything listed as released, "
        "together, and for anything computed from it later."
    ) + paragraph(
        "A step of DP-SGD adds noise to every coordinate of every embedding table. The selecting algorithms "
        "choose, privately, the rows a step may touch, and add noise to those alone: the gradient size is the "
        "number of embedding coordinates that get noise."
    )
