"""How the settings of WIDE's figures were found: every rule over as many settings, once each.

A seed that the figures do not use, judged by the loss on the validation part, which is taken to be public.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import plotly.graph_objects as go
import polars as pl

from experiments.common.study import Study
from experiments.wide import settings
from experiments.wide.brown_examples import BROWN, BrownExamples, load
from experiments.wide.word_vectors import Setting, train

DATA_SETS = (BROWN,)
WORDS, SEED = 1000, 100
ROWS_GRID = ((0.3, 100.0), (0.3, 50.0), (0.1, 300.0), (0.1, 150.0))
"""Clip and learning rate of the rules that train rows; at half the rate the steps are half as long."""
COORDINATES_GRID = ((0.05, 2000.0), (0.05, 1000.0), (0.02, 5000.0), (0.02, 2500.0))
"""The same for the rules of single coordinates, which take a fortieth of them a step."""
SMALL = 3.0
PARTS: dict[float, Sequence[Setting]] = {
    30.0: (
        settings.DP_SGD,
        settings.ADAFEST,
        settings.FEST,
        settings.RANDOM,
        settings.EXPONENTIAL,
        settings.SPARSE_VECTOR,
    ),
    SMALL: (settings.DP_SGD, settings.ADAFEST, settings.FEST, settings.RANDOM),
}
LEAD = (
    "Loss of CBOW on the validation part of the Brown corpus, which is taken to be public and fixed the vocabulary: four "
    "settings of every rule, one seed. The best of each is what the figures are made with, on other seeds and the test part."
)


def run(study: Study) -> dict[str, Any]:
    """Train every rule at every setting of its grid."""
    examples = load(study, 100 if study.quick else WORDS)
    found: dict[str, Any] = {}
    for epsilon, rules in PARTS.items():
        for rule in rules[:1] if study.quick else rules:
            table = pl.DataFrame(
                [_line(examples, each, epsilon, study.quick) for each in grid(rule, epsilon)]
            )
            name = f"epsilon {epsilon:g}, {rule.name}"
            found = study.write("Tuning CBOW (WIDE)", LEAD, {name: table}, {name: _chart(table)})
    return found


def grid(rule: Setting, epsilon: float) -> list[Setting]:
    """The settings that are tried of a rule; at a small epsilon the noise is larger and the rates are half."""
    of_rows = rule.name in (settings.DP_SGD.name, settings.ADAFEST.name, settings.FEST.name)
    return [
        replace(rule, max_grad_norm=clip, learning_rate=rate if epsilon > SMALL else rate / 2)
        for clip, rate in (ROWS_GRID if of_rows else COORDINATES_GRID)
    ]


def _line(examples: BrownExamples, setting: Setting, epsilon: float, quick: bool) -> dict[str, Any]:
    tried = replace(setting, batch=256, epochs=1, dim=16) if quick else setting
    trained = train(examples, tried, epsilon, seed=SEED, quick=quick)
    return {
        "epsilon": epsilon,
        "rule": setting.name,
        "clip": setting.max_grad_norm,
        "learning rate": setting.learning_rate,
        "validation loss": trained.curve[-1].validation,
        "train loss": trained.curve[-1].train,
        "coordinates a step": trained.gradient_size,
    }


def _chart(table: pl.DataFrame) -> go.Figure:
    figure = go.Figure()
    for (clip,), group in table.group_by(["clip"], maintain_order=True):
        figure.add_scatter(
            x=group["learning rate"].to_list(),
            y=group["validation loss"].to_list(),
            name=f"clip {clip:g}",
            mode="lines+markers",
        )
    figure.update_xaxes(type="log", title="learning rate")
    return figure.update_yaxes(title="validation loss")
