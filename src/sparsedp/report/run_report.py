"""The report of a run, or of several compared: what was trained, what it cost, how good it is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from sparsedp.accounting import PrivacyStatement
from sparsedp.core.rounding_up import rounded_up
from sparsedp.report.chart import Curves, Dots, Series, chart_html
from sparsedp.report.finished_run import FinishedRun
from sparsedp.report.joint import JointCost, joint_costs, with_unknown_data
from sparsedp.report.page import Section, paragraph, table, write_page
from sparsedp.runs import ALGORITHMS


def write_report(paths: Sequence[str | Path], out: str | Path) -> Path:
    """Write the HTML report of one run or of a comparison to ``out``."""
    if not paths:
        raise ValueError("runs: give at least one run's folder")
    runs = [FinishedRun.read(path) for path in paths]
    title = runs[0].name if len(runs) == 1 else f"{len(runs)} runs compared"
    cards = [
        *map(privacy_card, runs),
        *map(_joint_card, joint_costs(runs)),
        _unknown_card(with_unknown_data(runs)),
    ]
    sections = [
        Section("What was trained", _settings(runs)),
        Section("Results", _results(runs)),
        *_attacks(runs),
        *_charts(runs),
        Section("How to read this", _reading()),
    ]
    write_page(Path(out), f"sparsedp: {title}", "".join(cards), sections)
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
            f"factor of at most {_factor(statement.epsilon)}, except with probability {rounded_up(statement.delta, 2)}.",
            "good",
        )
        if statement.private
        else paragraph("NOT PRIVATE: " + statement.notes[0], "bad")
    )
    words = paragraph(str(statement), "quiet")
    vocabulary = run.data.get("vocabulary_statement")
    if vocabulary is not None:
        cost = f"The vocabulary was learned from the same data; unless the run shares its ledger, it adds {vocabulary}."
        words += paragraph(cost, "quiet")
    if run.audit is not None:
        words += _audit_words(run.audit)
    figures = _figures(statement.epsilon, statement.delta, statement.unit, run.audit)
    return f"<div class=card><strong>{escape(run.name)}</strong>{figures}{verdict}{words}</div>"


def _figures(epsilon: float, delta: float, unit: str, audit: Mapping[str, Any] | None = None) -> str:
    """Epsilon, delta and unit, large, at the top of a card: a phone shows them without scrolling.

    Of an audited run the audited lower bound stands beside the claimed epsilon.
    """
    audited = () if audit is None else (("audited epsilon", f"≥ {audit['lower_bound']:.3g}"),)
    named = (("epsilon", rounded_up(epsilon, 3)), *audited, ("delta", rounded_up(delta, 2)), ("unit", unit))
    return "".join(
        [
            "<dl class=figures>",
            *(f"<div><dt>{name}</dt><dd>{escape(value)}</dd></div>" for name, value in named),
            "</dl>",
        ]
    )


def _audit_words(audit: Mapping[str, Any]) -> str:
    """What the audited lower bound means, and how it was found."""
    # With torch, which a report of other runs does not need.
    from sparsedp.runs.auditing import refutation, why_period

    copy = audit["copy"]
    period = audit.get("period")
    of_period = "" if period is None else f" in period {period}, {why_period(audit['claimed'])},"
    refuted = refutation(audit)
    verdict = (
        f"The audit refutes the claim: {refuted}."
        if refuted
        else "A bound below the claim does not prove the claim."
    )
    return paragraph(
        f"Audited: a copy of this run's configuration{of_period} with {audit['canaries']:,} canaries, {audit['steps']:,} steps "
        f"and a budget of epsilon {rounded_up(copy['epsilon'], 3)} let through at least epsilon {audit['lower_bound']:.3g} at "
        f"delta {copy['delta']:.2g} ({copy['adjacency']}, unit: {copy['unit']}, released: {copy['released']}; confidence "
        f"{audit['confidence']:g}). {verdict}",
        "bad" if refuted else "quiet",
    )


def _joint_card(cost: JointCost) -> str:
    """What all runs on the same data cost together."""
    names = ", ".join(run.name for run in cost.runs)
    title = f"<strong>All {len(cost.runs)} runs on the same data together</strong>"
    words = paragraph(names, "quiet")
    figures = ""
    if cost.statement is not None:
        figures = _figures(cost.statement.epsilon, cost.statement.delta, cost.statement.unit)
        words += paragraph(str(cost.statement), "quiet")
    elif any(run.statement is not None for run in cost.runs):
        words += paragraph(
            "They protect different units, so there is no one epsilon for all of them.", "quiet"
        )
    if cost.unprotected:
        plain = "NOT PRIVATE together: a model trained without privacy is among them. The figures are those of the private ones."
        words += paragraph(plain, "bad")
    return f"<div class=card>{title}{figures}{words}</div>"


def _unknown_card(runs: Sequence[FinishedRun]) -> str:
    """Which runs may be on the data of others; empty where this is known of all."""
    if not runs:
        return ""
    names = ", ".join(f"{run.name} ({run.folder.path})" for run in runs)
    words = (
        f"It is not known whether these are on the same data as the others: {names}. Their folders lack private/data.json, "
        "which holds a hash of the data, and the paths of the data differ. If they are, epsilons and deltas add up."
    )
    return f"<div class=card>{paragraph(words, 'bad')}</div>"


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
_MEASURED = (
    "training_rows",
    "noise_multiplier",
    "map_noise_multiplier",
    "gradient_noise_multiplier",
    "threshold",
)
"""What the run found out about its own steps."""


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
    measured = {name: run.result.get(name) for name in _MEASURED}
    # The threshold of a step is measured: where the settings leave it to false_positives, the run has computed it.
    figures = named | {name: value for name, value in measured.items() if value is not None}
    statement = run.statement
    words = {
        name: value if isinstance(value, str) else _number(value)
        for name, value in figures.items()
        if value is not None
    }
    return words if statement is None else {**words, "unit": statement.unit, "adjacency": statement.adjacency}


def _results(runs: Sequence[FinishedRun]) -> str:
    header = [
        "run",
        "epsilon",
        "delta",
        "AUC",
        "log-loss",
        "gradient size",
        "times smaller than DP-SGD",
        "examples/s",
    ]
    rows = []
    for run in runs:
        result, statement = run.result, run.statement
        rows.append(
            [
                run.name,
                "none" if statement is None else rounded_up(statement.epsilon, 3),
                "" if statement is None else rounded_up(statement.delta, 2),
                f"{result['auc']:.4f}",
                "not finite"
                if result["log_loss"] is None
                else f"{result['log_loss']:.4f}{_beside_constant(result)}",
                _number(result["gradient_size"]),
                "" if result["reduction"] is None else f"{result['reduction']:,.1f}",
                _number(result.get("examples_per_second")),
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
    power = f"e^{rounded_up(epsilon, 3)}"
    return f"{rounded_up(math.exp(epsilon), 3)} ({power})" if epsilon < 7 else power


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 100 else f"{value:.4g}"


_RATES = (0.0, 0.001, 0.003, 0.01, 0.03, 0.06, 0.1, 0.15, 0.2, 0.3, 0.4)
"""False positive rates at which a trade-off curve is drawn, and at the rates that mirror them."""


def _attacks(runs: Sequence[FinishedRun]) -> list[Section]:
    """The error rates of the best possible attacker; nothing where no run is private."""
    stated = [(run, run.statement) for run in runs if run.statement is not None]
    if not stated:
        return []
    words = paragraph(
        "An attacker who knows everything but one unit of the data says whether it was in. Whoever accuses fewer "
        "outsiders (false positives) misses more insiders (false negatives): no attack on what was released has "
        "error rates below a run's line. The diagonal is guessing."
    )
    words += "".join(paragraph(f"{run.name}: {each.attack_text()}", "quiet") for run, each in stated)
    title = "What an attacker can find out"
    return [Section(title, words + chart_html(trade_off_chart(stated), title))]


def trade_off_chart(stated: Sequence[tuple[FinishedRun, PrivacyStatement]]) -> Curves:
    """One line for each run: the least false negative rate at each false positive rate."""
    series = []
    for run, statement in stated:
        left = [(rate, statement.trade_off(rate)) for rate in _RATES]
        left = [(x, y) for x, y in left if x <= y]
        points = left + [(y, x) for x, y in reversed(left)] + [(1.0, 0.0)]
        name = run.name if statement.private else f"{run.name} (NOT PRIVATE)"
        series.append(Series(name, [x for x, _ in points], [y for _, y in points]))
    series.append(Series("guessing", [0.0, 1.0], [1.0, 0.0]))
    return Curves(series, "false positive rate", "least possible false negative rate")


def _charts(runs: Sequence[FinishedRun]) -> list[Section]:
    charts: list[tuple[str, str, Curves | Dots]] = []
    if any(len(run.metrics) > 1 for run in runs):  # one evaluation is no curve
        charts.append(("Quality over time", "", _over_time(runs)))
    sparse = [run for run in runs if run.result["gradient_size"]]
    if sparse:
        charts.append(("Embedding coordinates that get noise, per step", "", _sizes(sparse)))
        order = "The column with the most rows first."
        charts.append(("Rows with noise per column and step", paragraph(order, "quiet"), _rows(sparse)))
    budgets = {run.config.epsilon for run in runs if run.config.epsilon}
    if len(budgets) > 1:
        charts.append(("AUC against epsilon", "", auc_against_epsilon(runs)))
    return [Section(title, words + chart_html(chart, title)) for title, words, chart in charts]


def _over_time(runs: Sequence[FinishedRun]) -> Curves:
    series = [
        Series(
            run.name, [record["step"] for record in run.metrics], [record["auc"] for record in run.metrics]
        )
        for run in runs
        if run.metrics
    ]
    return Curves(series, "step", "AUC on held-out rows")


def _sizes(runs: Sequence[FinishedRun]) -> Dots:
    dense = runs[0].result["table_coordinates"]
    names = [*[run.name for run in runs], "dense DP-SGD"]
    sizes = [*[run.result["gradient_size"] for run in runs], dense]
    return Dots(names, [("coordinates", sizes)], "coordinates, logarithmic", values=True)


def _rows(runs: Sequence[FinishedRun]) -> Dots:
    """Rows with noise in a step, by column: the column with the most first, equal ones by name."""
    by_run = [run.rows_per_column for run in runs]
    most = {name: max(rows.get(name, 0.0) for rows in by_run) for rows in by_run for name in rows}
    names = sorted(most, key=lambda name: (-most[name], name))
    series = [(run.name, [rows.get(name) for name in names]) for run, rows in zip(runs, by_run, strict=True)]
    return Dots(names, series, "rows, logarithmic", values=len(runs) == 1)


def auc_against_epsilon(runs: Sequence[FinishedRun]) -> Curves:
    """One curve for each algorithm; the non-private AUC as a horizontal line."""
    by_algorithm: dict[str, list[FinishedRun]] = {}
    for run in runs:
        by_algorithm.setdefault(run.config.method.name, []).append(run)
    series, level = [], None
    for algorithm, group in by_algorithm.items():
        label = ALGORITHMS[algorithm].label
        if not ALGORITHMS[algorithm].private:
            level = (group[0].result["auc"], label)
            continue
        group.sort(key=lambda run: run.config.epsilon or 0.0)
        budgets = [run.config.epsilon or 0.0 for run in group]
        series.append(Series(label, budgets, [run.result["auc"] for run in group]))
    budgets = sorted({run.config.epsilon for run in runs if run.config.epsilon})
    units = " or ".join(sorted({run.config.unit for run in runs}))
    return Curves(
        series, f"epsilon (add-or-remove-one {units})", "AUC on held-out rows", x_ticks=budgets, level=level
    )


def _reading() -> str:
    return (
        paragraph(
            "Epsilon bounds how much the released model can depend on any one example; smaller is more private. "
            "Delta is the probability that the bound may fail. Both hold for everything listed as released, "
            "together, and for anything computed from it later."
        )
        + paragraph(
            "A step of DP-SGD adds noise to every coordinate of every embedding table. The selecting algorithms "
            "choose, privately, the rows a step may touch, and add noise to those alone: the gradient size is the "
            "number of embedding coordinates that get noise."
        )
        + paragraph(
            "noise_multiplier is the effective one of a step (sigma); map_noise_multiplier is that of the contribution map "
            "(sigma1), gradient_noise_multiplier that of the gradient (sigma2), threshold the noisy count that a row must "
            "reach (tau)."
        )
    )
