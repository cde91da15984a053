"""How the rates of the text study were found: every method over as many settings, once each.

A seed that the study does not use, at epsilon 1, judged by accuracy on phrases that were cut from the training part.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import polars as pl

from experiments.common.study import Study
from experiments.fest.text import ADAFEST, DEFAULT, FEST, METHODS, QUICK, RANKS, Case, finished, train_case
from experiments.fest.text import DATA_SETS as SETS
from experiments.fest.text_data import Texts, TextSet, made_up, read

DATA_SETS = [each for each in SETS if each.name in DEFAULT]
EPSILON, SEED = 1.0, 100
COLUMNS = ("learning_rate", "head_learning_rate", "table_learning_rate")
KNOBS: dict[str, dict[str, Any]] = {
    "frozen": {},
    "LoRA": {"embedding_rank": RANKS[0]},
    "DP-SGD": {},
    "DP-AdaFEST": ADAFEST[0],
    "DP-FEST, public": FEST[0],
}
GRIDS: dict[str, list[dict[str, float]]] = {
    "frozen": [
        {"learning_rate": rate, "head_learning_rate": head} for rate in (0.001, 0.003) for head in (0.03, 0.1)
    ],
    "LoRA": [{"learning_rate": rate, "head_learning_rate": 0.1} for rate in (0.0001, 0.0003, 0.001, 0.003)],
    **{
        method: [{"table_learning_rate": rate, "head_learning_rate": 0.1} for rate in (0.3, 1.0, 3.0, 10.0)]
        for method in ("DP-SGD", "DP-AdaFEST", "DP-FEST, public")
    },
}
"""The frozen embedding's settings choose the head's rate for all; the others try four rates of what they train of the
word embedding: its rows, or an adapter, whose rate is that of the other adapters."""
LEAD = (
    "Accuracy on training phrases that were left out of training, at epsilon 1 (add-or-remove-one phrase; released: the "
    "model after every step): four settings of every method, one seed. The best of each is what the text study is run with."
)


def run(study: Study) -> dict[str, Any]:
    """Train every method at every setting of its grid."""
    found: dict[str, Any] = {}
    for each in [QUICK] if study.quick else study.choose(DATA_SETS):
        with tempfile.TemporaryDirectory() as scratch:
            texts = made_up(Path(scratch)) if study.quick else read(each, study)
            tried = list(cases())[:2] if study.quick else cases()
            table = pl.DataFrame([line(case, each, texts, study) for case in tried], infer_schema_length=None)
        found = study.write("Tuning text classifiers", LEAD, {each.name: table}, {each.name: _chart(table)})
    return found


def cases() -> Iterator[Case]:
    """Four settings of every method."""
    for method, knobs in KNOBS.items():
        for rates in GRIDS[method]:
            yield Case(method, {**METHODS[method], **rates, **knobs}, EPSILON, SEED)


def line(case: Case, each: TextSet, texts: Texts, study: Study) -> dict[str, Any]:
    """The figures of a setting."""
    key = [each.name, each.settings, asdict(case)]
    figures = finished(key, study, lambda: train_case(case, each, texts, texts.validation))
    rates = {name: case.settings.get(name, each.settings[name]) for name in COLUMNS}
    return {
        "method": case.method,
        **rates,
        **{name: figures[name] for name in ("accuracy", "auc", "reduction")},
    }


def _chart(table: pl.DataFrame) -> go.Figure:
    figure = go.Figure()
    for (method,), group in table.group_by(["method"], maintain_order=True):
        figure.add_scatter(
            x=list(range(1, group.height + 1)),
            y=group["accuracy"].to_list(),
            name=str(method),
            mode="lines+markers",
        )
    figure.update_xaxes(title="setting")
    return figure.update_yaxes(title="accuracy")
