"""Curves on logarithmic axes, and their slopes beside those of the theorems."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import plotly.graph_objects as go
import polars as pl

from experiments.common.study import Study
from sparsedp.convex.theory.rates import log_log_slope

Kind = Literal["measured", "theorem", "baseline", "floor"]
_DASH = {"measured": "solid", "theorem": "dash", "baseline": "solid", "floor": "dot"}
_COLOURS = ("#0b6e99", "#c2410c", "#4d7c0f", "#7c3aed", "#475569", "#be185d", "#a16207", "#0f766e")


@dataclass(frozen=True)
class Curve:
    """One line of a panel."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    kind: Kind = "measured"


@dataclass(frozen=True)
class Panel:
    """One picture: curves over one quantity."""

    title: str
    x: str
    y: str
    curves: Sequence[Curve]


@dataclass(frozen=True)
class Slope:
    """A measured exponent beside the theorem's, over the same points."""

    setting: str
    regime: str
    over: str
    points: str
    theorem: float
    measured: float

    @property
    def within(self) -> bool:
        """Whether the two agree to 0.1."""
        return abs(self.theorem - self.measured) <= 0.1

    def line(self) -> dict[str, Any]:
        """As a line of a table."""
        return {**asdict(self), "within 0.1": "yes" if self.within else "NO"}


def slope(
    setting: str,
    regime: str,
    over: str,
    x: Sequence[float],
    measured: Sequence[float],
    theorem: Sequence[float],
) -> Slope:
    """Both exponents by least squares on logarithmic axes."""
    points = f"{_power(x[0])} .. {_power(x[-1])}"
    return Slope(setting, regime, over, points, log_log_slope(x, theorem), log_log_slope(x, measured))


def anchored(theorem: Sequence[float], measured: Sequence[float]) -> list[float]:
    """The theorem's curve through the middle of the measured one: theorems leave constants open."""
    shift = sum(math.log(m / t) for m, t in zip(measured, theorem, strict=True)) / len(theorem)
    return [t * math.exp(shift) for t in theorem]


def write(
    study: Study,
    title: str,
    lead: str,
    panels: Sequence[Panel],
    slopes: Sequence[Slope],
    tables: Mapping[str, pl.DataFrame] | None = None,
    numbers: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """Write the curves, point by point, the slopes, and what else was found."""
    gap = max(abs(each.theorem - each.measured) for each in slopes)
    found = {"Slopes": pl.DataFrame([each.line() for each in slopes]), **(tables or {})}
    charts = {panel.title: _chart(panel) for panel in panels}
    return study.write(
        title, lead, found, charts, _points(panels), {"worst_slope_gap": gap, **(numbers or {})}
    )


def _points(panels: Sequence[Panel]) -> pl.DataFrame:
    """A line for each point of each curve."""
    return pl.DataFrame(
        [
            {"panel": panel.title, "curve": curve.name, "kind": curve.kind, "over": panel.x, "x": x, "y": y}
            for panel in panels
            for curve in panel.curves
            for x, y in zip(map(float, curve.x), map(float, curve.y), strict=True)
        ]
    )


def _chart(panel: Panel) -> go.Figure:
    figure = go.Figure()
    for number, curve in enumerate(panel.curves):
        line = {"dash": _DASH[curve.kind], "color": _COLOURS[number % len(_COLOURS)]}
        mode = "lines" if curve.kind in ("theorem", "floor") else "lines+markers"
        figure.add_scatter(x=list(curve.x), y=list(curve.y), name=curve.name, mode=mode, line=line)
    figure.update_xaxes(type="log", title=panel.x)
    figure.update_yaxes(type="log", title=panel.y)
    return figure


def _power(value: float) -> str:
    exponent = math.log2(value)
    return f"2^{exponent:.0f}" if exponent == round(exponent) and value > 16 else f"{value:g}"
